// The pair of caches of a decoder with an encoder: one fate for both sides of a step, cross keys
// that are computed once and never stale, and every operation on both.
#include "kvcache/cache/encoder_decoder_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/static_cache.h"
#include "kvcache/cache/uncached.h"
#include "tests/support/counting.h"
#include "tests/support/encoder_decoder.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::counting;
using testing::cross_keys;
using ::testing::ElementsAre;
using testing::encoder_input;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::numbers;
using testing::refusal;
using testing::run;
using testing::Seen;
using testing::stored;

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};

EncoderDecoderCache two_layers() {
  return {DynamicCache({kFull, kFull}), DynamicCache({kFull, kFull})};
}

TEST(EncoderDecoderCache, TheEncodersSideIsNamedWhereItHasNoRoom) {
  EncoderDecoderCache cache(DynamicCache({kFull}), StaticCache({kFull}, {.max_cache_len = 2}));
  EXPECT_THAT(refusal<ValueError>([&] { run(cache, 1, 1, encoder_input(10, 3)); }),
              AllOf(HasSubstr("the encoder's side: layer 0 holds 0 of at most 2 tokens"),
                    HasSubstr("make the cache with a larger max_cache_len")));
  EXPECT_EQ(cache.get_seq_length(), 0);
  EXPECT_THAT(run(cache, 1, 1, encoder_input(10, 2)).cross[0], ElementsAre(10, 11));
}

TEST(EncoderDecoderCache, CrossKeysAreComputedOnceAnEncoderInput) {
  EncoderDecoderCache cache = two_layers();
  const CrossInput encoder = encoder_input(10, 3);
  EXPECT_FALSE(cache.is_updated(0));
  Seen first = run(cache, 2, 1, encoder);
  EXPECT_TRUE(first.computed);
  EXPECT_THAT(first.cross[0], ElementsAre(10, 11, 12));
  EXPECT_TRUE(cache.is_updated(1));
  for (const auto& again : {std::optional(encoder), std::optional<CrossInput>()}) {
    Seen next = run(cache, 1, 1, again);
    EXPECT_FALSE(next.computed);
    EXPECT_THAT(next.cross[0], ElementsAre(10, 11, 12));
  }
  EXPECT_EQ(cache.get_seq_length(), 4);
  EXPECT_EQ(cache.cross_attention_cache().get_seq_length(1), 3);
  EXPECT_TRUE(cache.holds(encoder, 1));
  EXPECT_FALSE(cache.holds(encoder_input(11, 3), 1));
  EXPECT_FALSE(cache.holds({.tokens = 3, .batch = 1}, 1));
}

TEST(EncoderDecoderCache, AChangedEncoderInputIsNoticed) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 2, 1, encoder_input(10, 3));
  const auto refused = [&](const CrossInput& input) {
    const std::string message =
        refusal<ValueError>([&] { cache.begin_step({.tokens = 1, .batch = 1, .cross = input}); });
    EXPECT_THAT(message, AllOf(HasSubstr("encoder's input"), HasSubstr("reset()"), HasSubstr("2")));
  };
  refused(encoder_input(20, 3));
  refused(encoder_input(10, 4));
  CrossInput unknown = encoder_input(10, 3);
  unknown.ids.reset();
  refused(unknown);
  CrossInput padded = encoder_input(10, 3);
  padded.valid = ids_tensor({{1, 1, 0}});
  refused(padded);
  EXPECT_THAT(run(cache, 1, 1, std::nullopt).cross[0], ElementsAre(10, 11, 12));

  cache.crop(-3);  // nothing of the decoder is left
  EXPECT_FALSE(run(cache, 1, 1, encoder_input(10, 3)).computed);
  cache.crop(-1);
  Seen other = run(cache, 1, 1, encoder_input(20, 4));
  EXPECT_TRUE(other.computed);
  EXPECT_THAT(other.cross[0], ElementsAre(20, 21, 22, 23));
  EXPECT_THAT(run(cache, 1, 1, std::nullopt).cross[0], ElementsAre(20, 21, 22, 23));
  EXPECT_EQ(cache.cross_attention_cache().get_seq_length(), 4);
}

// What the encoder's ids are under padding does not matter.
TEST(EncoderDecoderCache, PaddingOfTheEncoderIsRemembered) {
  EncoderDecoderCache cache = two_layers();
  CrossInput encoder = encoder_input(10, 3, 2);
  encoder.valid = ids_tensor({{1, 1, 0}, {1, 1, 1}});
  run(cache, 1, 2, encoder);
  CrossInput same = encoder;
  same.ids = ids_tensor({{10, 11, 0}, {60, 61, 62}});
  Step step = cache.begin_step({.tokens = 1, .batch = 2, .cross = same});
  EXPECT_EQ(step.cross(), nullptr);
  EXPECT_TRUE(step.cross_valid()->equal(encoder.valid->to(at::kBool)));
}

TEST(EncoderDecoderCache, InputsThatDoNotFitAreRefused) {
  EncoderDecoderCache cache = two_layers();
  const auto refused = [&](Cache& target, const StepInput& input) {
    return refusal<ValueError>([&] { target.begin_step(input); });
  };
  EXPECT_THAT(refused(cache, {.tokens = 1, .batch = 1}), HasSubstr("no encoder's keys are held"));
  EXPECT_THAT(refused(cache, {.tokens = 1, .batch = 3, .cross = encoder_input(1, 2, 2)}),
              AllOf(HasSubstr("3 rows"), HasSubstr("encoder's 2")));
  CrossInput empty_row = encoder_input(1, 2, 2);
  empty_row.valid = ids_tensor({{1, 1}, {0, 0}});
  EXPECT_THAT(refused(cache, {.tokens = 1, .batch = 2, .cross = empty_row}), HasSubstr("padding"));
  CrossInput wrong = encoder_input(1, 2);
  wrong.tokens = 3;
  EXPECT_THAT(refused(cache, {.tokens = 1, .batch = 1, .cross = wrong}), HasSubstr("int64 [1, 3]"));
  DynamicCache plain({kFull});
  EXPECT_THAT(refused(plain, {.tokens = 1, .batch = 1, .cross = encoder_input(1, 2)}),
              HasSubstr("EncoderDecoderCache"));
  Step step = plain.begin_step({.tokens = 1, .batch = 1});
  EXPECT_EQ(step.cross(), nullptr);
  EXPECT_THROW(step.cross_view(0), ValueError);
}

TEST(EncoderDecoderCache, BothSidesOfAStepHaveOneFate) {
  EncoderDecoderCache cache = two_layers();
  for (const std::int64_t layers : {0, 1, 2}) {
    run(cache, 2, 1, encoder_input(10, 3), layers);  // let go
    EXPECT_EQ(cache.get_seq_length(), 0);
    EXPECT_EQ(cache.cross_attention_cache().get_seq_length(), 0);
    EXPECT_EQ(cache.batch_size(), 0);
    EXPECT_EQ(cache.nbytes(), 0);
  }
  {
    Step step = cache.begin_step({.tokens = 1, .batch = 1, .cross = encoder_input(10, 3)});
    const at::Tensor own = counting(0, 1, {1, 1, 1}), encoded = cross_keys(encoder_input(10, 3));
    EXPECT_THROW(step.cross()->commit(), RuntimeError);
    EXPECT_THAT(refusal<RuntimeError>([&] { step.cross_view(0); }), HasSubstr("cross()"));
    for (const std::int64_t layer : {0, 1}) step.append(layer, own, own);
    step.cross()->append(0, encoded, encoded);
    EXPECT_THAT(refusal<RuntimeError>([&] { step.commit(); }),
                AllOf(HasSubstr("encoder's side"), HasSubstr("layer 1 of 2")));
    EXPECT_EQ(cache.get_seq_length(), 0);
    step.cross()->append(1, encoded, encoded);
    step.commit();
  }
  EXPECT_EQ(cache.get_seq_length(), 1);
  EXPECT_EQ(cache.cross_attention_cache().history().seen(), 3);
}

TEST(EncoderDecoderCache, AReplacementThatIsLetGoLeavesTheOldKeys) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 1, 1, encoder_input(10, 3));
  cache.crop(-1);
  const void* address = stored(cache.cross_attention_cache())[1].keys.const_data_ptr();
  for (const std::int64_t layers : {0, 1, 2}) run(cache, 1, 1, encoder_input(20, 5), layers);
  EXPECT_TRUE(cache.holds(encoder_input(10, 3), 1));
  EXPECT_EQ(stored(cache.cross_attention_cache())[1].keys.const_data_ptr(), address);
  EXPECT_THAT(run(cache, 1, 1, std::nullopt).cross[0], ElementsAre(10, 11, 12));
}

TEST(EncoderDecoderCache, NothingElseMayChangeEitherPartWhileAStepIsOpen) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 1, 1, encoder_input(10, 3));
  Step step = cache.begin_step({.tokens = 1, .batch = 1});
  EXPECT_THROW(cache.reset(), RuntimeError);
  EXPECT_THROW(cache.cross_attention_cache().reset(), RuntimeError);
  EXPECT_THROW(cache.reorder_cache(at::zeros({1}, at::kLong)), RuntimeError);
  EXPECT_THROW(cache.clone(), RuntimeError);
  EXPECT_THROW(cache.begin_step({.tokens = 1, .batch = 1}), RuntimeError);
  EncoderDecoderCache moved = std::move(cache);
  const at::Tensor own = counting(1, 1, {1, 1, 1});
  for (const std::int64_t layer : {0, 1}) step.append(layer, own, own);
  step.commit();
  EXPECT_EQ(moved.get_seq_length(), 2);
  moved.reset();
}

TEST(EncoderDecoderCache, F12TheDecodersWindowLeavesTheEncoderWhole) {
  struct Config {
    std::vector<LayerSpec> layer_specs() const { return {kWindow4, kFull}; }
  };
  EncoderDecoderCache cache{Config{}};
  const CrossInput encoder = encoder_input(10, 9);
  const at::Tensor encoded = cross_keys(encoder);
  for (const std::int64_t tokens : {9, 1, 1, 3, 1, 1, 1}) {
    Step step = cache.begin_step({.tokens = tokens, .batch = 1, .cross = encoder});
    EXPECT_EQ(step.cross() != nullptr, step.seen() == 0);
    const at::Tensor own = counting(step.seen(), tokens, {1, 1, 1});
    for (const std::int64_t layer : {0, 1}) {
      const std::int64_t past = layer == 0 ? std::min<std::int64_t>(step.seen(), 3) : step.seen();
      EXPECT_EQ(step.append(layer, own, own).visible.length, past + tokens);
      if (step.cross() != nullptr) step.cross()->append(layer, encoded, encoded);
      const View cross = step.cross_view(layer);
      EXPECT_EQ(cross.visible.length, 9);
      EXPECT_EQ(cross.visible.offset, 0);
      EXPECT_EQ(cross.visible.window, std::nullopt);
      EXPECT_THAT(numbers(dense(cross).keys), ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18));
    }
    step.commit();
  }
  EXPECT_EQ(cache.get_mask_sizes(1, 0), std::pair(4L, 14L));
  EXPECT_THAT(refusal<ValueError>(
                  [] { EncoderDecoderCache(DynamicCache({kFull}), DynamicCache({kWindow4})); }),
              AllOf(HasSubstr("layer 0"), HasSubstr("sliding_attention")));
}

TEST(EncoderDecoderCache, F15ResetForgetsTheEncoder) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 5, 1, encoder_input(10, 3));
  cache.reset();
  EXPECT_FALSE(cache.is_updated(0));
  EXPECT_EQ(cache.batch_size(), 0);
  Seen seen = run(cache, 2, 1, encoder_input(20, 2));
  EXPECT_TRUE(seen.computed);
  EXPECT_THAT(seen.cross[0], ElementsAre(20, 21));
  EXPECT_EQ(cache.get_seq_length(), 2);
}

TEST(EncoderDecoderCache, F62CropConcernsTheDecoder) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 4, 1, encoder_input(10, 5));
  EXPECT_TRUE(cache.can_crop(2));
  cache.crop(-2);
  EXPECT_EQ(cache.get_seq_length(), 2);
  EXPECT_EQ(cache.cross_attention_cache().get_seq_length(), 5);
  EXPECT_FALSE(cache.can_crop(3));
  EXPECT_THROW(cache.crop(-3), RuntimeError);
}

TEST(EncoderDecoderCache, F27RewindToNothing) {
  EncoderDecoderCache cache(DynamicCache({kFull, kWindow4}), DynamicCache({kFull, kFull}));
  cache.activate_past_recording();
  run(cache, 5, 1, encoder_input(10, 3));
  cache.crop(-5);
  EXPECT_EQ(cache.get_seq_length(), 0);
  EXPECT_EQ(cache.get_mask_sizes(3, 1), (std::pair<std::int64_t, std::int64_t>(3, 0)));
  EXPECT_THAT(run(cache, 3, 1, {}).cross[0], ElementsAre(10, 11, 12));
  EXPECT_EQ(cache.get_seq_length(), 3);
  EXPECT_THAT(numbers(stored(cache.self_attention_cache())[0].keys), ElementsAre(0, 1, 2));
}

TEST(EncoderDecoderCache, CopiesAreIndependentAndBytesAddUp) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 4, 1, encoder_input(10, 3));
  EXPECT_EQ(cache.nbytes(), std::int64_t{2 * 2 * 4 * (4 + 3)});  // layers, sides, bytes, tokens
  EXPECT_EQ(cache.cross_attention_cache().allocated_bytes(), std::int64_t{2 * 2 * 4 * 16});
  const std::unique_ptr<Cache> copy = cache.clone();
  EXPECT_EQ(copy->kind(), "encoder_decoder");
  auto& other = dynamic_cast<EncoderDecoderCache&>(*copy);
  cache.reset();
  EXPECT_EQ(other.get_seq_length(), 4);
  EXPECT_THAT(run(other, 1, 1, encoder_input(10, 3)).cross[0], ElementsAre(10, 11, 12));
  EXPECT_NE(dynamic_cast<DynamicCache*>(&other.self_attention_cache()), nullptr);
}

TEST(EncoderDecoderCache, PartsMayBeFilledByHand) {
  EncoderDecoderCache cache = two_layers();
  const at::Tensor encoded = counting(10, 3, {2, 1, 1});
  for (const std::int64_t layer : {0, 1}) {
    cache.cross_attention_cache().update(encoded, encoded, layer);
  }
  EXPECT_EQ(cache.batch_size(), 2);
  EXPECT_FALSE(cache.holds(encoder_input(10, 3, 2), 2));
  Seen seen = run(cache, 1, 2, std::nullopt);
  EXPECT_FALSE(seen.computed);
  EXPECT_THAT(seen.cross[1], ElementsAre(1010, 1011, 1012));
  EXPECT_THAT(refusal<ValueError>([&] { run(cache, 1, 2, encoder_input(10, 3, 2)); }),
              HasSubstr("not known to be the one"));
  cache.crop(-1);
  EXPECT_TRUE(run(cache, 1, 2, encoder_input(10, 3, 2)).computed);
}

TEST(EncoderDecoderCache, PartsOfFixedSizesKeepTheirAddresses) {
  EncoderDecoderCache cache{StaticCache({kFull, kFull}, {.max_cache_len = 4}),
                            StaticCache({kFull, kFull}, {.max_cache_len = 3})};
  EXPECT_THAT(refusal<ValueError>([&] { run(cache, 1, 1, encoder_input(10, 4)); }),
              HasSubstr("cannot take 4"));
  EXPECT_EQ(cache.cross_attention_cache().nbytes(), 0);
  run(cache, 2, 2, encoder_input(10, 3, 2));
  EXPECT_EQ(cache.capacity(), 4);
  const auto addresses = [&] {
    return std::pair(stored(cache.self_attention_cache())[1].keys.const_data_ptr(),
                     stored(cache.cross_attention_cache())[1].keys.const_data_ptr());
  };
  const auto before = addresses();
  cache.reorder_cache(ids_tensor({{1, 0}})[0]);
  EXPECT_THAT(run(cache, 1, 2, std::nullopt).cross[0], ElementsAre(60, 61, 62));
  cache.batch_select_indices(ids_tensor({{1, 0}})[0]);
  EXPECT_THAT(run(cache, 1, 2, std::nullopt).cross[0], ElementsAre(10, 11, 12));
  cache.crop(-3);
  EXPECT_EQ(addresses(), before);
  cache.reset();
  EXPECT_THAT(run(cache, 4, 2, encoder_input(20, 2, 2)).cross[1], ElementsAre(70, 71));
  EXPECT_EQ(addresses(), before);
  EXPECT_THROW(run(cache, 1, 2, std::nullopt), ValueError);
}

TEST(EncoderDecoderCache, LayersMayBeMadeAsKeysComeIn) {
  EncoderDecoderCache cache{DynamicCache(), DynamicCache()};
  Step step = cache.begin_step({.tokens = 2, .batch = 1, .cross = encoder_input(10, 3)});
  const at::Tensor own = counting(0, 2, {1, 1, 1}), encoded = cross_keys(encoder_input(10, 3));
  for (const std::int64_t layer : {0, 1, 2}) {
    step.append(layer, own, own);
    step.cross()->append(layer, encoded, encoded);
    EXPECT_THAT(numbers(dense(step.cross_view(layer)).keys), ElementsAre(10, 11, 12));
  }
  step.commit();
  EXPECT_EQ(cache.cross_attention_cache().layer_count(), 3);
  cache.crop(-2);
  run(cache, 1, 1, encoder_input(20, 4), 2);  // let go
  EXPECT_THAT(run(cache, 1, 1, std::nullopt).cross[0], ElementsAre(10, 11, 12));
}

TEST(EncoderDecoderCache, ChecksBothPartsAgainstAModel) {
  const std::vector<LayerSpec> model{{.kv_heads = 1, .key_dim = 1, .value_dim = 1}, kFull};
  EncoderDecoderCache cache = two_layers();
  run(cache, 2, 1, encoder_input(10, 3));
  cache.check_fits(model, at::kFloat);
  EXPECT_THROW(cache.check_fits(model, at::kBFloat16), ValueError);
  EXPECT_THROW(cache.check_fits({kFull}, at::kFloat), ValueError);
  EncoderDecoderCache fewer{DynamicCache({kFull, kFull}), DynamicCache({kFull})};
  EXPECT_THROW(fewer.check_fits(model, at::kFloat), ValueError);
}

TEST(EncoderDecoderCache, RunsWithoutACacheToo) {
  EncoderDecoderCache none{uncached({kFull, kWindow4}), uncached({kFull, kFull})};
  EXPECT_THAT(run(none, 2, 1, encoder_input(10, 3), 2).cross[0], ElementsAre(10, 11, 12));
}

}  // namespace
}  // namespace kvcache
