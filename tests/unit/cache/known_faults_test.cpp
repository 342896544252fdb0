// Faults that users of cache libraries met, reduced to the smallest input that shows them. The
// numbers (F02) are those that the traces use.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/counting.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::feed;
using testing::from_to;
using testing::numbers;
using testing::refusal;
using testing::stored;
using testing::window;
using Numbers = std::vector<std::int64_t>;
using MaskSizes = std::pair<std::int64_t, std::int64_t>;

const LayerSpec kFull{};

Numbers held(LayeredCache& cache, std::size_t layer = 0) {
  return numbers(stored(cache)[layer].keys);
}

// The edge of a window of 8: what a growing layer keeps is 7 tokens, and a step sees 8.
TEST(KnownFaults, F01WindowEdge) {
  DynamicCache cache({window(8)});
  feed(cache, 6);
  EXPECT_EQ(feed(cache, 1), from_to(0, 6));
  EXPECT_EQ(held(cache), from_to(0, 6));
  EXPECT_EQ(feed(cache, 1), from_to(0, 7));
  EXPECT_EQ(held(cache), from_to(1, 7));
  EXPECT_EQ(feed(cache, 1), from_to(1, 8));
  EXPECT_EQ(held(cache), from_to(2, 8));
}

TEST(KnownFaults, F02MaskWidthAndKeysAgree) {
  struct Case {
    std::int64_t tokens;
    MaskSizes mask;
    Numbers keys, stored;
  };
  DynamicCache cache({window(4)});
  for (const Case& step : {Case{3, {3, 0}, from_to(0, 2), from_to(0, 2)},
                           Case{3, {6, 0}, from_to(0, 5), from_to(3, 5)},
                           Case{1, {4, 3}, from_to(3, 6), from_to(4, 6)},
                           Case{5, {8, 4}, from_to(4, 11), from_to(9, 11)},
                           Case{1, {4, 9}, from_to(9, 12), from_to(10, 12)}}) {
    EXPECT_EQ(cache.get_mask_sizes(step.tokens, 0), step.mask);
    EXPECT_EQ(feed(cache, step.tokens), step.keys);
    EXPECT_EQ(held(cache), step.stored);
  }
}

TEST(KnownFaults, F03TimeOrderAroundAWindow) {
  DynamicCache cache({window(4)});
  feed(cache, 2);
  for (std::int64_t n = 2; n < 80; ++n) {
    EXPECT_EQ(feed(cache, 1), from_to(std::max<std::int64_t>(n - 3, 0), n));
  }
}

TEST(KnownFaults, F04RecordingWithoutCrop) {
  DynamicCache cache({window(4)});
  cache.activate_past_recording();
  feed(cache, 6);
  cache.crop(0);
  for (std::int64_t n = 6; n <= 8; ++n) {
    EXPECT_EQ(cache.get_mask_sizes(1, 0), MaskSizes(4, n - 3));
    EXPECT_EQ(feed(cache, 1), from_to(n - 3, n));
  }
  cache.crop(-2);
  EXPECT_EQ(cache.get_seq_length(), 7);
  EXPECT_EQ(held(cache), from_to(4, 6));
}

// The cache's part: rolled back across the edge, the right tokens see what they would have seen.
TEST(KnownFaults, F05RollbackAcrossTheEdge) {
  for (const std::int64_t total : {2, 3, 4, 5, 6, 9}) {
    for (std::int64_t removed = 1; removed <= 3 && removed < total; ++removed) {
      DynamicCache cache({window(4)});
      cache.activate_past_recording();
      feed(cache, total - removed);
      cache.crop(0);
      const at::Tensor wrong = counting(500, removed, {1, 1, 1});
      cache.update(wrong, wrong, 0);
      cache.crop(-removed);
      EXPECT_EQ(feed(cache, removed),
                from_to(std::max<std::int64_t>(total - removed - 3, 0), total - 1));
    }
  }
}

TEST(KnownFaults, F06CropOfMoreThanIsStored) {
  DynamicCache cache({window(4)});
  cache.activate_past_recording();
  feed(cache, 6);
  cache.crop(0);
  feed(cache, 2);
  EXPECT_FALSE(cache.can_crop(4));
  EXPECT_THROW(cache.crop(-4), RuntimeError);
  EXPECT_EQ(cache.get_seq_length(), 8);
  EXPECT_EQ(held(cache), from_to(3, 7));
}

TEST(KnownFaults, F07OversizeCrop) {
  for (const LayerSpec& spec : {kFull, window(2), window(8)}) {
    for (const bool recorded : {false, true}) {
      DynamicCache cache({spec});
      if (recorded) cache.activate_past_recording();
      feed(cache, 3);
      const Numbers before = held(cache);
      EXPECT_THROW(cache.crop(-5), RuntimeError);
      EXPECT_EQ(cache.get_seq_length(), 3);
      EXPECT_EQ(held(cache), before);
    }
  }
}

TEST(KnownFaults, F08CropBeforeTheFirstToken) {
  DynamicCache cache({window(4), kFull});
  cache.crop(0);
  EXPECT_EQ(cache.get_seq_length(), 0);
  DynamicCache lazy;
  lazy.crop(0);
  EXPECT_EQ(lazy.get_seq_length(), 0);
}

// The cache's part: the second piece of 128 is handed 256 columns.
TEST(KnownFaults, F13SecondPrefillPiece) {
  DynamicCache cache({kFull, window(200)});
  for (const std::int64_t layer : {0, 1}) feed(cache, 128, layer);
  EXPECT_EQ(cache.get_mask_sizes(128, 0), MaskSizes(256, 0));
  EXPECT_EQ(cache.get_mask_sizes(128, 1), MaskSizes(256, 0));
  EXPECT_EQ(feed(cache, 128, 0), from_to(0, 255));
  EXPECT_EQ(feed(cache, 128, 1), from_to(0, 255));
}

TEST(KnownFaults, F15ResetForgetsGrowingLayers) {
  for (const LayerSpec& spec : {kFull, window(3)}) {
    DynamicCache cache({spec});
    feed(cache, 5);
    cache.reset();
    EXPECT_EQ(cache.get_seq_length(), 0);
    EXPECT_EQ(cache.allocated_bytes(), 0);
    EXPECT_EQ(feed(cache, 2), from_to(0, 1));
    EXPECT_EQ(cache.get_seq_length(), 2);
  }
}

TEST(KnownFaults, F17NoMaximumLengthWithoutLayers) {
  EXPECT_EQ(DynamicCache().get_max_length(), -1);
  EXPECT_EQ(DynamicCache({kFull}).get_max_length(), -1);
  EXPECT_EQ(DynamicCache({kFull, window(4)}).get_max_length(), 4);
}

TEST(KnownFaults, F21BatchAndDtypeChanges) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  DynamicCache cache({kFull});
  const at::Tensor first = counting(0, 3, {1, 1, 2}, at::kHalf);
  cache.update(first, first, 0);
  const at::Tensor wide = counting(3, 1, {2, 1, 2}, at::kHalf);
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(wide, wide, 0); }),
              AllOf(HasSubstr("batch 2"), HasSubstr("batch 1")));
  EXPECT_THAT(refusal<ValueError>([&] { cache.begin_step({.tokens = 1, .batch = 2}); }),
              AllOf(HasSubstr("batch 2"), HasSubstr("batch 1")));
  const at::Tensor other = counting(3, 1, {1, 1, 2}, at::kFloat);
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(other, other, 0); }),
              AllOf(HasSubstr("layer 0"), HasSubstr("float32"), HasSubstr("float16")));
  EXPECT_EQ(cache.get_seq_length(), 3);
  EXPECT_EQ(held(cache), from_to(0, 2));
}

TEST(KnownFaults, F27RewindToNothing) {
  DynamicCache cache({kFull, window(4)});
  cache.activate_past_recording();
  for (const std::int64_t layer : {0, 1}) feed(cache, 5, layer);
  cache.crop(-5);
  for (const std::int64_t layer : {0, 1}) {
    EXPECT_EQ(cache.get_seq_length(layer), 0);
    EXPECT_EQ(cache.get_mask_sizes(3, layer), MaskSizes(3, 0));
    EXPECT_EQ(feed(cache, 3, layer), from_to(0, 2));
    EXPECT_EQ(cache.get_seq_length(layer), 3);
  }
}

// Copies are named; a shallow one cannot be written.
static_assert(!std::is_copy_constructible_v<DynamicCache>);
static_assert(!std::is_copy_assignable_v<DynamicCache>);
static_assert(std::is_nothrow_move_constructible_v<DynamicCache>);
static_assert(!std::is_copy_constructible_v<Step>);

TEST(KnownFaults, F31ACopyIsItsOwn) {
  DynamicCache cache({kFull, window(3)});
  for (const std::int64_t layer : {0, 1}) feed(cache, 6, layer);
  const std::unique_ptr<Cache> copy = cache.clone();
  for (const std::int64_t layer : {0, 1}) feed(*copy, 3, layer);
  EXPECT_EQ(copy->get_seq_length(), 9);
  EXPECT_EQ(cache.get_seq_length(), 6);
  EXPECT_EQ(held(cache, 0), from_to(0, 5));
  EXPECT_EQ(held(cache, 1), from_to(4, 5));
}

}  // namespace
}  // namespace kvcache
