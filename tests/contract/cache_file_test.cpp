// Files of caches: what is saved is what is loaded, and what cannot be loaded changes nothing.

#include "kvcache/cache/serialization.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/io/safetensors.h"
#include "tests/contract/cache_file.h"
#include "tests/contract/digest.h"
#include "tests/contract/subject.h"
#include "tests/support/counting.h"
#include "tests/support/stored.h"

namespace kvcache {
namespace {

using nlohmann::json;
using testing::counting;
using testing::difference;
using testing::digest_of;
using testing::numbers;
using testing::stored;
using Numbers = std::vector<std::int64_t>;

const std::vector<LayerSpec> kLayers{
    {}, {.type = std::string(kSlidingAttention), .window = 4}, {.type = std::string(kDummy)}};

// Feeds `tokens` counting keys to all layers, with ids 100, 101, ...
void feed(DynamicCache& cache, std::int64_t tokens, std::int64_t batch = 1) {
  const std::int64_t seen = cache.get_seq_length();
  const at::Tensor ids = at::arange(100 + seen, 100 + seen + tokens, at::kLong);
  Step step = cache.begin_step(
      {.tokens = tokens, .batch = batch, .ids = ids.expand({batch, tokens}).contiguous()});
  const at::Tensor states = counting(seen, tokens, {batch, 2, 3});
  for (std::int64_t i = 0; i < cache.layer_count(); ++i) {
    if (cache.layer(i).spec().type != kDummy) step.append(i, states, states);
  }
  step.commit();
}

class CacheFile : public testing::CacheFileTest {
 protected:
  // A cache of kLayers that has seen 9 tokens, saved.
  DynamicCache saved(const CacheFileOptions& options = {}) const {
    DynamicCache cache(kLayers);
    feed(cache, 9);
    save_cache(cache, path(), options);
    return cache;
  }

  // Loading is refused with a message that has `part`, and leaves the cache as it was.
  void expect_refused(const std::string& part, const CacheFileOptions& options = {}) const {
    DynamicCache cache(kLayers);
    feed(cache, 3);
    testing::expect_load_refused(cache, path(), part, options);
  }
};

TEST_F(CacheFile, WhatIsLoadedIsWhatWasSaved) {
  DynamicCache source = saved({.fingerprint = "tiny-1"});
  DynamicCache cache(kLayers);
  feed(cache, 2);
  load_cache(cache, path(), {.fingerprint = "tiny-1", .dtype = at::kFloat});
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
  feed(source, 3);
  feed(cache, 3);
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
  EXPECT_EQ(numbers(stored(cache)[1].keys), Numbers({9, 10, 11}));
}

TEST_F(CacheFile, OfAnEmptyCacheEmpties) {
  DynamicCache empty(kLayers), cache(kLayers);
  save_cache(empty, path());
  feed(cache, 5);
  load_cache(cache, path());
  EXPECT_EQ(difference(digest_of(empty), digest_of(cache)), "");
  feed(cache, 1, /*batch=*/3);
}

TEST_F(CacheFile, MakesLayersThatAreMadeLazily) {
  DynamicCache source, cache;
  const at::Tensor states = counting(0, 4, {2, 1, 1});
  for (std::int64_t i = 0; i < 3; ++i) source.append(states, states, i);
  save_cache(source, path());
  load_cache(cache, path());
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
}

TEST_F(CacheFile, SharedPartsAreSavedJoined) {
  DynamicCache source(kLayers);
  feed(source, 6);
  source.expand(3);
  feed(source, 2, 3);
  const std::unique_ptr<Cache> fork = source.fork();
  save_cache(*fork, path());
  DynamicCache cache(kLayers);
  load_cache(cache, path());
  EXPECT_EQ(cache.batch_size(), 3);
  EXPECT_EQ(numbers(stored(cache)[0].keys, 2), Numbers({0, 1, 2, 3, 4, 5, 2006, 2007}));
  EXPECT_EQ(numbers(stored(cache)[1].keys, 1), Numbers({5, 1006, 1007}));
}

TEST_F(CacheFile, RecordingGoesOn) {
  DynamicCache source(kLayers), cache(kLayers);
  source.activate_past_recording(5);
  feed(source, 9);
  save_cache(source, path());
  load_cache(cache, path());
  EXPECT_EQ(difference(digest_of(source), digest_of(cache)), "");
  ASSERT_TRUE(cache.can_crop(4));
  cache.crop(-4);
  EXPECT_EQ(numbers(stored(cache)[1].keys), Numbers({2, 3, 4}));
}

TEST_F(CacheFile, FaultsAreNamedAndChangeNothing) {
  saved({.fingerprint = "tiny-1"});
  expect_refused("was made with the model 'tiny-1', but this model is 'tiny-2'",
                 {.fingerprint = "tiny-2"});
  expect_refused("but must be bfloat16", {.dtype = at::kBFloat16});
  expect_refused("there are 2 devices for 3 layers", {.devices = {at::kCPU, at::kCPU}});
  const auto refused_header = [&](const std::string& part,
                                  const std::function<void(json&)>& change) {
    saved();
    rewrite(change);
    expect_refused(part);
  };
  refused_header("is of version 1", [](json& h) { h["version"] = 1; });
  refused_header("holds a cache of kind 'static'", [](json& h) { h["kind"] = "static"; });
  refused_header("there is no 'kind'", [](json& h) { h.erase("kind"); });
  refused_header("says that 9 of 8 tokens are known", [](json& h) { h["seen"] = 8; });
  refused_header("'history.ids' must be", [](json& h) { h["batch"] = 2; });
  refused_header("'batch' must be an integer", [](json& h) { h["batch"] = "one"; });
  refused_header("'seen' must be an integer from 0", [](json& h) { h["seen"] = -1; });
  refused_header("tokens are known", [](json& h) { h["known"] = 10; });
  refused_header("holds 2 layers, but the cache has 3", [](json& h) { h["layers"].erase(2); });
  refused_header("layer 1 is {", [](json& h) { h["layers"][1]["spec"]["window"] = 5; });
  refused_header("layer 1 holds 3 tokens at most",
                 [](json& h) { h["layers"][1]["max_length"] = 3; });
  refused_header("it holds tokens 0 to 8",
                 [](json& h) { h["layers"][0]["counts"]["held_end"] = 8; });
  refused_header("must hold 4 tokens", [](json& h) { h["layers"][1]["counts"]["held_first"] = 5; });
  refused_header("'held_first' must be an integer",
                 [](json& h) { h["layers"][1]["counts"]["held_first"] = std::uint64_t(1) << 63; });
  refused_header("it has seen 4 tokens, the cache 9",
                 [](json& h) { h["layers"][2]["counts"]["seen"] = 4; });
  refused_header("layer 2 has a number 'more'",
                 [](json& h) { h["layers"][2]["counts"]["more"] = 4; });
  refused_header("there is no 'record'", [](json& h) { h["layers"][1]["counts"].erase("record"); });
  refused_header("has a tensor \"layers.0.keys\", which none of the cache's layers holds",
                 [](json& h) { h["layers"][0]["tensors"] = json::object(); });
  refused_header("'tensors' of layer 0 must be an object",
                 [](json& h) { h["layers"][0]["tensors"] = json::array(); });
  refused_header("keys is Float [1, 2, 9, 3], but was saved as 3",
                 [](json& h) { h["layers"][0]["tensors"]["keys"] = 3; });
  refused_header("must be a list", [](json& h) { h["layers"] = 3; });
  const auto refused_tensors =
      [&](const std::string& part,
          const std::function<void(std::map<std::string, at::Tensor>&)>& change) {
        saved();
        retensor(change);
        expect_refused(part);
      };
  refused_tensors("has no tensor", [](auto& t) { t.erase("layers.0.keys"); });
  refused_tensors("has a tensor \"more\"", [](auto& t) { t["more"] = at::arange(3); });
  refused_tensors("keys is Half [1, 2, 9, 3], but was saved as \"Float [1, 2, 9, 3]\"",
                  [](auto& t) { t["layers.0.keys"] = t["layers.0.keys"].to(at::kHalf); });
}

// Where the header says what tensors there are, the layers say what those must be.
TEST_F(CacheFile, TensorsThatNoLayerHoldsAreRefused) {
  const auto refused = [&](const std::string& part, const std::function<void(Tensors&)>& change) {
    saved();
    craft(change);
    expect_refused(part);
  };
  refused("layer 0: there is a tensor 'more' [3], which the layer does not have",
          [](auto& t) { t["layers.0.more"] = at::arange(3); });
  refused("layer 2: there is a tensor 'seen' [3]",
          [](auto& t) { t["layers.2.seen"] = at::arange(3); });
  refused("layer 0: there are no values for 9 tokens", [](auto& t) { t.erase("layers.0.values"); });
  refused("do not go together",
          [](auto& t) { t["layers.0.keys"] = t["layers.0.keys"].to(at::kHalf); });
  refused("do not go together", [](auto& t) {
    t["layers.0.keys"] = t["layers.0.keys"].to(at::kLong);
    t["layers.0.values"] = t["layers.0.values"].to(at::kLong);
  });
  refused("do not go together",
          [](auto& t) { t["layers.1.keys"] = t["layers.1.keys"].select(3, 0); });
  refused("do not go together",
          [](auto& t) { t["layers.1.keys"] = t["layers.1.keys"].narrow(3, 0, 0).clone(); });
  refused("must have 1 rows", [](auto& t) {
    for (const char* name : {"layers.0.keys", "layers.0.values"})
      t[name] = t[name].repeat({2, 1, 1, 1});
  });
}

// A cache that all was taken back from holds keys of no token, which bound no size.
TEST_F(CacheFile, SizesOfWhatHasNoElementAreBounded) {
  DynamicCache cache({LayerSpec{}});
  const at::Tensor states = counting(0, 2, {1, 2, 3});
  cache.append(states, states, 0);
  cache.crop(-2);
  save_cache(cache, path());
  craft([](auto& t) {
    for (const char* name : {"layers.0.keys", "layers.0.values"})
      t[name] = at::empty({1, std::int64_t{1} << 40, 0, 3});
  });
  testing::expect_load_refused(cache, path(), "for more than 1048576");
}

TEST_F(CacheFile, KnownTokensEndBeforeTheFirstWithoutAnId) {
  const std::vector<LayerSpec> layers{kLayers[0], kLayers[1]};
  DynamicCache cache(layers);
  feed(cache, 4);
  const at::Tensor states = counting(4, 2, {1, 2, 3});
  for (const std::int64_t layer : {0, 1}) cache.append(states, states, layer);
  feed(cache, 1);
  save_cache(cache, path());
  DynamicCache loaded(layers);
  load_cache(loaded, path());
  EXPECT_EQ(difference(digest_of(cache), digest_of(loaded)), "");
  rewrite([](json& h) { h["known"] = 3; });
  testing::expect_load_refused(cache, path(), "'known' is 3, but token 3 of 7 has an id");
}

TEST_F(CacheFile, WithoutWindowTokensIsRefused) {
  saved();
  const auto shorter = [](at::Tensor& t) { t = t.narrow(2, 2, 1).clone(); };
  retensor([&](auto& t) {
    shorter(t["layers.1.keys"]);
    shorter(t["layers.1.values"]);
  });
  rewrite([](json& h) { h["layers"][1]["counts"]["held_first"] = 8; });
  expect_refused("a query needs tokens from 6 on, but it holds them from 8 on");
}

TEST_F(CacheFile, TruncatedOrForeignFilesAreRefused) {
  saved();
  std::ifstream in(path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const auto refused = [&](std::size_t length, const std::string& part) {
    std::filesystem::remove(path());
    std::ofstream(path(), std::ios::binary) << bytes.substr(0, length);
    expect_refused("cache.safetensors");
    expect_refused(part);
  };
  refused(0, "the file is empty");
  refused(7, "it has only 7 bytes, too few for a safetensors file");
  refused(bytes.size() / 2, "was not written whole");
  refused(bytes.size() - 1, "bytes of data; it is damaged or was not written whole");
  save_safetensors(path(), {{"weight", at::arange(4)}});
  expect_refused("is not the file of a cache");
  std::filesystem::remove(path());
  expect_refused("cache.safetensors\": No such file");
}

TEST_F(CacheFile, IsNotTouchedInAStep) {
  DynamicCache cache = saved();
  const Step step = cache.begin_step({.tokens = 1, .batch = 1});
  EXPECT_THROW(save_cache(cache, path()), RuntimeError);
  EXPECT_THROW(load_cache(cache, path()), RuntimeError);
}

}  // namespace
}  // namespace kvcache

namespace kvcache::testing {
namespace {

// Rows that share a prefix are written out in a file, so bytes may differ.
Digest without_bytes(Digest digest) {
  std::erase_if(digest, [](const auto& entry) { return entry.first == "nbytes"; });
  return digest;
}

class SavedCaches : public ::testing::TestWithParam<Setting> {};

// Of every kind: a loaded cache equals its source, which it leaves alone, and goes on like it.
TEST_P(SavedCaches, GoOnLikeTheirSource) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / c10::str("kvcache_saved_", ::getpid());
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    Subject source(GetParam(), seed);
    for (std::uint64_t i = 0; i < seed; ++i) take_step(source, source.random_plan());
    if (seed == 2 && source.model.batch() == 1) expand(source, 2);
    if (seed == 3) crop(source, 1);
    const Digest before = source.digest();
    save_cache(*source.cache, path);
    Subject loaded = source.clone();
    loaded.cache = source.setting.kind.make(source.memory);
    CacheFileOptions options{.dtype = source.setting.dtype, .devices = {}};
    for (std::int64_t i = 0; i < source.layers().layer_count(); ++i) {
      options.devices.push_back(source.setting.device_of(i));
    }
    if (options.devices.empty()) options.devices = {at::kCPU};
    load_cache(*loaded.cache, path, options);
    EXPECT_EQ(difference(without_bytes(before), without_bytes(loaded.digest())), "");
    EXPECT_EQ(difference(before, source.digest()), "");
    for (int i = 0; i < 2; ++i) {
      const StepPlan plan = source.random_plan();
      take_step(source, plan);
      take_step(loaded, plan);
      EXPECT_EQ(difference(without_bytes(source.digest()), without_bytes(loaded.digest())), "");
    }
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SavedCaches, ::testing::ValuesIn(settings()),
                         [](const auto& setting) { return name_of(setting.param); });

}  // namespace
}  // namespace kvcache::testing
