// Files of a decoder's cache with an encoder's beside it: one file for both, loaded both or not at
// all. That of every kind are equal to their source is in cache_file_test.cpp.

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/cache/static_cache.h"
#include "tests/contract/cache_file.h"
#include "tests/support/encoder_decoder.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using nlohmann::json;
using testing::difference;
using testing::digest_of;
using ::testing::ElementsAre;
using testing::encoder_input;
using ::testing::HasSubstr;
using testing::refusal;
using testing::run;
using testing::stored;

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};

EncoderDecoderCache two_layers() {
  return {DynamicCache({kFull, kWindow4}), DynamicCache({kFull, kFull})};
}

class EncoderDecoderFile : public testing::CacheFileTest {
 protected:
  // Two rows for each of two encoder rows, the first one padded; five tokens seen.
  EncoderDecoderCache saved() const {
    EncoderDecoderCache cache = two_layers();
    run(cache, 5, 4, input());
    save_cache(cache, path(), {.fingerprint = "tiny-1"});
    return cache;
  }

  static CrossInput input() {
    CrossInput input = encoder_input(10, 3, 2);
    input.valid = testing::ids_tensor({{0, 1, 1}, {1, 1, 1}});
    return input;
  }

  // A cache that has seen something else.
  void expect_refused(const std::string& part, const CacheFileOptions& options = {}) const {
    EncoderDecoderCache cache = two_layers();
    run(cache, 2, 1, encoder_input(70, 4));
    testing::expect_load_refused(cache, path(), part, options);
  }
};

TEST_F(EncoderDecoderFile, KnowsItsEncoderInput) {
  EncoderDecoderCache source = saved(), cache = two_layers();
  run(cache, 2, 1, encoder_input(70, 4));
  load_cache(cache, path(), {.fingerprint = "tiny-1", .dtype = at::kFloat});
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
  EXPECT_TRUE(cache.is_updated(1));
  EXPECT_TRUE(cache.holds(input(), 4));
  const testing::Seen seen = run(cache, 1, 4, input());
  EXPECT_FALSE(seen.computed);
  EXPECT_THAT(seen.cross.at(1), ElementsAre(60, 61, 62));
  CrossInput changed = input();
  changed.valid.reset();
  EXPECT_THAT(refusal<ValueError>([&] { run(cache, 1, 4, changed); }),
              HasSubstr("not known to be the one"));
  run(source, 1, 4, std::nullopt);
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
}

TEST_F(EncoderDecoderFile, OfAnEmptyCacheEmptiesBothSides) {
  EncoderDecoderCache empty = two_layers(), cache = two_layers();
  save_cache(empty, path());
  run(cache, 2, 1, encoder_input(70, 4));
  load_cache(cache, path());
  EXPECT_EQ(difference(digest_of(empty), digest_of(cache)), "");
  EXPECT_FALSE(cache.is_updated(0));
  EXPECT_TRUE(run(cache, 1, 3, encoder_input(10, 2, 3)).computed);
}

TEST_F(EncoderDecoderFile, BeforeTheEncodersKeysCome) {
  EncoderDecoderCache source = two_layers(), cache = two_layers();
  const at::Tensor states = testing::counting(0, 3, {2, 1, 1});
  for (const std::int64_t layer : {0, 1}) source.update(states, states, layer);
  save_cache(source, path());
  load_cache(cache, path());
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
  EXPECT_TRUE(run(cache, 1, 2, encoder_input(10, 3)).computed);
}

TEST_F(EncoderDecoderFile, BuffersOfAFixedSizeKeepTheirAddresses) {
  const auto fixed = [] {
    return EncoderDecoderCache(StaticCache({kFull, kWindow4}, {.max_cache_len = 8}),
                               StaticCache({kFull, kFull}, {.max_cache_len = 5}));
  };
  EncoderDecoderCache source = fixed(), cache = fixed();
  run(source, 6, 2, encoder_input(10, 5));
  run(cache, 2, 2, encoder_input(20, 4));
  const void* own = stored(cache.self_attention_cache())[0].keys.const_data_ptr();
  const void* encoded = stored(cache.cross_attention_cache())[1].keys.const_data_ptr();
  save_cache(source, path());
  load_cache(cache, path());
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
  EXPECT_EQ(stored(cache.self_attention_cache())[0].keys.const_data_ptr(), own);
  EXPECT_EQ(stored(cache.cross_attention_cache())[1].keys.const_data_ptr(), encoded);
}

TEST_F(EncoderDecoderFile, GoesIntoNoOtherKind) {
  saved();
  DynamicCache plain({kFull, kWindow4});
  testing::expect_load_refused(plain, path(), "holds a cache of kind 'encoder_decoder'");
  save_cache(plain, path());
  expect_refused("holds a cache of kind 'dynamic', but this one is of kind 'encoder_decoder'");
  EncoderDecoderCache other{StaticCache({kFull}, {.max_cache_len = 4}), DynamicCache({kFull})};
  save_cache(other, path());
  expect_refused(
      "self_attention_cache holds a cache of kind 'static', but this one is of kind 'dynamic'");
}

TEST_F(EncoderDecoderFile, FaultsOfEitherSideAreNamedAndChangeNeither) {
  saved();
  expect_refused("was made with the model 'tiny-1'", {.fingerprint = "tiny-2"});
  expect_refused("but must be bfloat16", {.dtype = at::kBFloat16});
  expect_refused("there are 3 devices for 2 layers", {.devices = {3, at::kCPU}});
  const auto refused_header = [&](const std::string& part,
                                  const std::function<void(json&)>& change) {
    saved();
    rewrite(change);
    expect_refused(part);
  };
  refused_header("is of version 1", [](json& h) { h["version"] = 1; });
  refused_header("there is no 'cross_attention_cache'",
                 [](json& h) { h.erase("cross_attention_cache"); });
  refused_header("cross_attention_cache: there is no 'batch'",
                 [](json& h) { h["cross_attention_cache"] = 3; });
  refused_header("cross_attention_cache: 'history.ids' must be",
                 [](json& h) { h["cross_attention_cache"]["batch"] = 4; });
  refused_header("cross_attention_cache: layer 1 is {",
                 [](json& h) { h["cross_attention_cache"]["layers"][1]["spec"]["window"] = 5; });
  refused_header("self_attention_cache: layer 1 is {",
                 [](json& h) { h["self_attention_cache"]["layers"][1]["spec"]["window"] = 5; });
  refused_header("cross_attention_cache holds 1 layers, but the cache has 2",
                 [](json& h) { h["cross_attention_cache"]["layers"].erase(1); });
  refused_header("cross_attention_cache: layer 0: a query needs tokens from 0 on", [](json& h) {
    h["cross_attention_cache"]["layers"][0]["counts"]["held_first"] = 1;
  });
  refused_header("cross_attention_cache: layer 0: it has seen 5 tokens, the cache 3",
                 [](json& h) { h["cross_attention_cache"]["layers"][0]["counts"]["seen"] = 5; });
  const auto refused_tensors = [&](const std::string& part,
                                   const std::function<void(Tensors&)>& change) {
    saved();
    retensor(change);
    expect_refused(part);
  };
  refused_tensors("has no tensor", [](auto& t) { t.erase("cross_attention_cache.layers.1.keys"); });
  refused_tensors("has a tensor \"layers.0.keys\"",
                  [](auto& t) { t["layers.0.keys"] = at::ones({1}); });
  refused_tensors("a row of the encoder's holds padding alone",
                  [](auto& t) { t["cross_attention_cache.history.valid"][0].fill_(false); });
}

TEST_F(EncoderDecoderFile, RowsOfTheDecoderMustFitTheEncoders) {
  EncoderDecoderCache source = two_layers();
  run(source, 2, 4, encoder_input(10, 3, 2));
  source.self_attention_cache().batch_select_indices(testing::ids_tensor({{0, 1, 2}})[0]);
  save_cache(source, path());
  expect_refused("the decoder's 3 rows are no multiple of the encoder's 2");
}

// Layers that one side has made as the file wants them go again if the other side refuses.
TEST_F(EncoderDecoderFile, LeavesNoLayersBehind) {
  saved();
  EncoderDecoderCache lazy{DynamicCache(), DynamicCache()};
  testing::expect_load_refused(lazy, path(), "self_attention_cache: layer 1 is {");
  EncoderDecoderCache half{DynamicCache({kFull, kWindow4}), DynamicCache()};
  rewrite([](json& h) { h["cross_attention_cache"]["layers"][1]["max_length"] = 3; });
  testing::expect_load_refused(half, path(),
                               "cross_attention_cache: layer 1 holds 3 tokens at most");
  EXPECT_EQ(lazy.self_attention_cache().layer_count(), 0);
  EXPECT_EQ(half.cross_attention_cache().layer_count(), 0);
  EncoderDecoderCache source = saved();
  load_cache(half, path());
  EXPECT_EQ(difference(digest_of(source), digest_of(half)), "");
}

TEST_F(EncoderDecoderFile, IsNotTouchedInAStep) {
  EncoderDecoderCache cache = saved();
  const Step step = cache.begin_step({.tokens = 1, .batch = 4});
  EXPECT_THROW(save_cache(cache, path()), RuntimeError);
  EXPECT_THROW(load_cache(cache, path()), RuntimeError);
}

}  // namespace
}  // namespace kvcache
