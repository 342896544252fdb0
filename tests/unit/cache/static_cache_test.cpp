// StaticCache: what is refused before it is written, and the known faults (F14) of fixed caches;
// that storage stays where it is (F20) is in fixed_addresses_test.cpp.

#include "kvcache/cache/static_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/counting.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::buffers;
using testing::counting;
using testing::FailingMemory;
using testing::feed;
using testing::from_to;
using ::testing::HasSubstr;
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

const void* address(LayeredCache& cache, std::size_t layer = 0) {
  return buffers(cache)[layer].keys.const_data_ptr();
}

TEST(StaticCache, NamesItsKindAndNeedsLayers) {
  EXPECT_EQ(StaticCache({kFull}, {.max_cache_len = 4}).kind(), "static");
  EXPECT_THROW(StaticCache(std::vector<LayerSpec>{}, {.max_cache_len = 4}), ValueError);
  EXPECT_THROW(StaticCache({kFull}, {}), ValueError);
  EXPECT_THROW(StaticCache({kFull}, {.max_cache_len = 4, .record_slack = -1}), ValueError);
  EXPECT_THROW(StaticCache({window(0)}, {.max_cache_len = 4}), ValueError);
}

// The edge of a window of 8: a ring of 8 hands over 8 columns from the start.
TEST(StaticCache, F01WindowEdge) {
  StaticCache cache({window(8)}, {.max_cache_len = 64});
  EXPECT_EQ(feed(cache, 6), (Numbers{0, 1, 2, 3, 4, 5, 0, 0}));
  EXPECT_EQ(feed(cache, 1), (Numbers{0, 1, 2, 3, 4, 5, 6, 0}));
  EXPECT_EQ(feed(cache, 1), from_to(0, 7));
  EXPECT_EQ(feed(cache, 1), from_to(1, 8));
  EXPECT_EQ(held(cache), from_to(2, 8));
}

TEST(StaticCache, F02MaskWidthAndKeysAgree) {
  struct Case {
    std::int64_t tokens;
    MaskSizes mask;
    Numbers keys;
  };
  StaticCache cache({window(4)}, {.max_cache_len = 64});
  for (const Case& step : {Case{3, {4, 0}, {0, 1, 2, 0}}, Case{3, {6, 0}, from_to(0, 5)},
                           Case{1, {4, 3}, from_to(3, 6)}, Case{5, {8, 4}, from_to(4, 11)},
                           Case{1, {4, 9}, from_to(9, 12)}}) {
    EXPECT_EQ(cache.get_mask_sizes(step.tokens, 0), step.mask);
    EXPECT_EQ(feed(cache, step.tokens), step.keys);
  }
}

TEST(StaticCache, F03TimeOrderAroundTheRing) {
  StaticCache cache({window(4)}, {.max_cache_len = 400});
  feed(cache, 2);
  for (std::int64_t n = 2; n < 80; ++n) {
    Numbers right = from_to(std::max<std::int64_t>(n - 3, 0), n);
    right.resize(4);
    EXPECT_EQ(feed(cache, 1), right);
  }
}

// Recorded tokens lie in the slack, which the mask never counts.
TEST(StaticCache, F04RecordingWithoutCrop) {
  StaticCache cache({window(4)}, {.max_cache_len = 64, .record_slack = 6});
  cache.activate_past_recording();
  feed(cache, 6);
  cache.crop(0);
  for (const std::int64_t n : {6, 7, 8}) {
    EXPECT_EQ(cache.get_mask_sizes(1, 0), MaskSizes(4, n - 3));
    EXPECT_EQ(feed(cache, 1), from_to(n - 3, n));
  }
  cache.crop(-2);
  EXPECT_EQ(cache.get_seq_length(), 7);
  EXPECT_EQ(held(cache), from_to(4, 6));
}

TEST(StaticCache, F05RollbackAcrossTheWindowEdge) {
  for (const std::int64_t total : {2, 3, 4, 5, 6, 9}) {
    for (std::int64_t removed = 1; removed <= 3 && removed < total; ++removed) {
      StaticCache cache({window(4)}, {.max_cache_len = 64, .record_slack = 3});
      cache.activate_past_recording();
      feed(cache, total - removed);
      cache.crop(0);
      const at::Tensor wrong = counting(500, removed, {1, 1, 1});
      cache.update(wrong, wrong, 0);
      cache.crop(-removed);
      const std::int64_t first = std::max<std::int64_t>(total - removed - 3, 0);
      Numbers right = from_to(first, total - 1);
      right.resize(std::max<std::size_t>(right.size(), 4));
      EXPECT_EQ(feed(cache, removed), right);
    }
  }
}

TEST(StaticCache, F06CropOfMoreThanIsStored) {
  StaticCache cache({window(4)}, {.max_cache_len = 64, .record_slack = 2});
  cache.activate_past_recording();
  feed(cache, 8);
  EXPECT_TRUE(cache.can_crop(2));
  EXPECT_FALSE(cache.can_crop(3));
  EXPECT_THROW(cache.crop(-3), RuntimeError);
  EXPECT_EQ(held(cache), from_to(3, 7));
}

TEST(StaticCache, F07OversizeCrop) {
  for (const LayerSpec& spec : {kFull, window(2), window(8), window(64)}) {
    StaticCache cache({spec}, {.max_cache_len = 32});
    feed(cache, 3);
    const Numbers before = held(cache);
    EXPECT_THROW(cache.crop(-5), RuntimeError);
    EXPECT_EQ(cache.get_seq_length(), 3);
    EXPECT_EQ(held(cache), before);
  }
}

TEST(StaticCache, F09WindowNotSmallerThanCapacity) {
  for (const LayerSpec& spec :
       {window(8), window(4), LayerSpec{.type = std::string(kChunkedAttention), .window = 8}}) {
    StaticCache cache({spec}, {.max_cache_len = 4});
    EXPECT_EQ(cache.capacity(), 4);
    for (int i = 0; i < 4; ++i) feed(cache, 1);
    EXPECT_THROW(feed(cache, 1), ValueError);
    EXPECT_EQ(held(cache), from_to(0, 3));
    cache.crop(-3);
    EXPECT_EQ(feed(cache, 2), (Numbers{0, 1, 2, 0}));
  }
}

TEST(StaticCache, F14OverflowIsRefusedBeforeAnythingIsWritten) {
  for (const bool in_step : {false, true}) {
    StaticCache cache({window(2), kFull}, {.max_cache_len = 4});
    for (const std::int64_t layer : {0, 1}) feed(cache, 3, layer);
    const at::Tensor before = buffers(cache)[1].keys.clone();
    const at::Tensor two = counting(3, 2, {1, 1, 1});
    const std::string message = refusal<ValueError>([&] {
      in_step ? static_cast<void>(cache.begin_step({.tokens = 2, .batch = 1}))
              : static_cast<void>(cache.update(two, two, 1));
    });
    EXPECT_THAT(message, AllOf(HasSubstr("layer 1"), HasSubstr("holds 3 of at most 4"),
                               HasSubstr("2 more"), HasSubstr("max_cache_len")));
    EXPECT_EQ(cache.get_seq_length(1), 3);
    EXPECT_TRUE(buffers(cache)[1].keys.equal(before));
    EXPECT_EQ(feed(cache, 1, 1), from_to(0, 3));
  }
}

TEST(StaticCache, F15ResetKeepsTheAddress) {
  StaticCache cache({kFull}, {.max_cache_len = 4});
  feed(cache, 4);
  const void* before = address(cache);
  cache.reset();
  EXPECT_EQ(cache.get_seq_length(), 0);
  EXPECT_EQ(cache.nbytes(), 0);
  const at::Tensor fifty = counting(50, 2, {1, 1, 1});
  EXPECT_EQ(numbers(cache.update(fifty, fifty, 0).keys), (Numbers{50, 51, 0, 0}));
  EXPECT_EQ(address(cache), before);
}

TEST(StaticCache, F17MaximumLength) {
  EXPECT_EQ(StaticCache({kFull, window(4)}, {.max_cache_len = 16}).get_max_length(), 16);
  const StaticCache rings({window(4), window(2)}, {.max_cache_len = 16});
  EXPECT_EQ(rings.get_max_length(), 4);
  EXPECT_EQ(rings.get_max_length(1), 2);
  EXPECT_EQ(rings.capacity(), std::nullopt);  // a text passes through
}

TEST(StaticCache, F19EarlyAllocationWithUnequalHeadSizes) {
  StaticCache cache({kFull, window(4)}, {.max_cache_len = 8});
  cache.early_initialization({.kv_heads = {2, 3}, .key_dims = {6}, .value_dims = {4, 5}});
  const std::vector<KeyValue> made = buffers(cache);
  EXPECT_EQ(made[0].keys.sizes(), at::IntArrayRef({1, 2, 8, 6}));
  EXPECT_EQ(made[0].values.sizes(), at::IntArrayRef({1, 2, 8, 4}));
  EXPECT_EQ(made[1].keys.sizes(), at::IntArrayRef({1, 3, 4, 6}));
  EXPECT_EQ(made[1].values.sizes(), at::IntArrayRef({1, 3, 4, 5}));
  EXPECT_EQ(cache.get_seq_length(), 0);
  cache.update(counting(0, 2, {1, 2, 6}), counting(0, 2, {1, 2, 4}), 0);
  cache.update(counting(0, 2, {1, 3, 6}), counting(0, 2, {1, 3, 5}), 1);
  EXPECT_EQ(held(cache, 0), from_to(0, 1));
  EXPECT_EQ(address(cache, 1), made[1].keys.const_data_ptr());
}

TEST(StaticCache, F21BatchAndDtypeChanges) {
  StaticCache cache({kFull}, {.max_cache_len = 8});
  const at::Tensor first = counting(0, 3, {1, 1, 2}, at::kHalf);
  cache.update(first, first, 0);
  const at::Tensor wide = counting(3, 1, {2, 1, 2}, at::kHalf);
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(wide, wide, 0); }),
              AllOf(HasSubstr("batch 2"), HasSubstr("batch 1")));
  const at::Tensor other = counting(3, 1, {1, 1, 2}, at::kFloat);
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(other, other, 0); }),
              AllOf(HasSubstr("layer 0"), HasSubstr("float32"), HasSubstr("float16")));
  EXPECT_EQ(cache.get_seq_length(), 3);
  cache.reset();
  cache.check_fits({kFull}, at::kFloat);  // what is not held fits any dtype
  cache.update(wide.to(at::kFloat), wide.to(at::kFloat), 0);
  EXPECT_EQ(cache.batch_size(), 2);
}

TEST(StaticCache, F27RewindToNothing) {
  StaticCache cache({kFull, window(4)}, {.max_cache_len = 8});
  cache.activate_past_recording();
  for (const std::int64_t layer : {0, 1}) feed(cache, 5, layer);
  cache.crop(-5);
  for (const std::int64_t layer : {0, 1}) {
    EXPECT_EQ(cache.get_seq_length(layer), 0);
    EXPECT_EQ(cache.get_mask_sizes(3, layer), MaskSizes(layer == 0 ? 8 : 4, 0));
    Numbers right = from_to(0, 2);
    right.resize(layer == 0 ? 8 : 4);
    EXPECT_EQ(feed(cache, 3, layer), right);
  }
}

TEST(StaticCache, F31ACopyIsItsOwn) {
  StaticCache cache({kFull, window(3)}, {.max_cache_len = 16});
  for (const std::int64_t layer : {0, 1}) feed(cache, 6, layer);
  const std::unique_ptr<Cache> copy = cache.clone();
  for (const std::int64_t layer : {0, 1}) feed(*copy, 3, layer);
  EXPECT_EQ(copy->kind(), "static");
  EXPECT_EQ(copy->get_seq_length(), 9);
  EXPECT_EQ(cache.get_seq_length(), 6);
  EXPECT_EQ(held(cache, 0), from_to(0, 5));
  EXPECT_EQ(held(cache, 1), from_to(4, 5));
}

TEST(StaticCache, EarlyInitializationFixesTheShape) {
  StaticCache cache({kFull}, {.max_cache_len = 8});
  cache.early_initialization({.batch = 2, .kv_heads = {1}, .key_dims = {3}, .dtype = at::kHalf});
  const void* before = address(cache);
  const at::Tensor right = counting(0, 2, {2, 1, 3}, at::kHalf);
  for (const bool reset : {false, true}) {
    for (const at::Tensor& wrong : {right.narrow(0, 0, 1), right.to(at::kFloat)}) {
      EXPECT_THROW(cache.update(wrong, wrong, 0), ValueError);
    }
    cache.update(right, right, 0);
    EXPECT_THROW(cache.early_initialization({.kv_heads = {1}, .key_dims = {3}}), RuntimeError);
    EXPECT_EQ(address(cache), before);
    if (!reset) cache.reset();
  }
}

TEST(StaticCache, EarlyInitializationTakesSpecsOrRefuses) {
  const LayerSpec sized{.kv_heads = 2, .key_dim = 3, .value_dim = 5};
  StaticCache cache({sized}, {.max_cache_len = 8});
  EXPECT_THROW(cache.early_initialization({.kv_heads = {1}}), ValueError);
  EXPECT_THROW(cache.early_initialization({.kv_heads = {2, 2}}), ValueError);
  EXPECT_THROW(cache.early_initialization({.batch = 0}), ValueError);
  EXPECT_EQ(cache.allocated_bytes(), 0);
  cache.early_initialization({});
  EXPECT_EQ(cache.allocated_bytes(), 4 * 2 * 8 * (3 + 5));
  const void* before = address(cache);
  cache.early_initialization({});
  EXPECT_EQ(address(cache), before);
  StaticCache unsized({kFull}, {.max_cache_len = 8});
  EXPECT_THROW(unsized.early_initialization({}), ValueError);
}

TEST(StaticCache, EarlyInitializationOfAllLayersOrNone) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache cache({kFull, window(4), kFull}, {.max_cache_len = 8, .memory = memory});
  for (std::int64_t allowed = 0; allowed < 6; ++allowed) {
    memory->fail_after(allowed);
    EXPECT_THROW(cache.early_initialization({.kv_heads = {1}, .key_dims = {1}}),
                 c10::OutOfMemoryError);
    EXPECT_EQ(memory->live_bytes(), 0);
  }
  memory->fail_after(std::nullopt);
  cache.early_initialization({.kv_heads = {1}, .key_dims = {1}});
  EXPECT_EQ(memory->live_bytes(), 2 * 4 * (8 + 4 + 8));
  EXPECT_EQ(memory->live_bytes(), cache.allocated_bytes());
}

TEST(StaticCache, RecordingNeedsSlackOrAnEmptyCache) {
  StaticCache late({kFull, window(2), window(4)}, {.max_cache_len = 8});
  for (const std::int64_t layer : {0, 1, 2}) feed(late, 3, layer);
  EXPECT_THAT(refusal<RuntimeError>([&] { late.activate_past_recording(); }),
              HasSubstr("record_slack"));
  for (const std::int64_t layer : {0, 1, 2}) feed(late, 3, layer);
  EXPECT_FALSE(late.can_crop(1));

  StaticCache early({kFull, window(2), window(4)}, {.max_cache_len = 8});
  early.early_initialization({.kv_heads = {1}, .key_dims = {1}});
  early.activate_past_recording();
  for (const std::int64_t layer : {0, 1, 2}) feed(early, 8, layer);
  early.crop(-7);
  EXPECT_EQ(held(early, 2), (Numbers{0}));

  StaticCache slack({kFull, window(2), window(4)}, {.max_cache_len = 8, .record_slack = 2});
  for (const std::int64_t layer : {0, 1, 2}) feed(slack, 3, layer);
  slack.activate_past_recording();
  for (const std::int64_t layer : {0, 1, 2}) feed(slack, 5, layer);
  EXPECT_TRUE(slack.can_crop(2));
  EXPECT_FALSE(slack.can_crop(3));
}

TEST(StaticCache, RecordingABoundedNumberOfTokens) {
  StaticCache early({window(4)}, {.max_cache_len = 64});
  early.activate_past_recording(2);
  feed(early, 9);
  EXPECT_EQ(buffers(early)[0].keys.size(2), 4 + 2);
  EXPECT_TRUE(early.can_crop(2));
  EXPECT_FALSE(early.can_crop(3));
  EXPECT_THAT(refusal<RuntimeError>([&] { early.activate_past_recording(3); }),
              AllOf(HasSubstr("layer 0: the ring has 6 slots"), HasSubstr("2 past tokens, not 3"),
                    HasSubstr("record_slack")));
  early.crop(-2);
  EXPECT_EQ(feed(early, 1), from_to(4, 7));

  StaticCache slack({window(4)}, {.max_cache_len = 64, .record_slack = 5});
  feed(slack, 9);
  slack.activate_past_recording(1);
  feed(slack, 9);
  EXPECT_TRUE(slack.can_crop(1));
  EXPECT_FALSE(slack.can_crop(2));
}

// A one-token step is written to a free slot: what it would push out is there after a rollback.
TEST(StaticCache, ARolledBackTokenLosesNothing) {
  StaticCache cache({window(4)}, {.max_cache_len = 64});
  feed(cache, 9);
  for (int i = 0; i < 3; ++i) {
    Step step = cache.begin_step({.tokens = 1, .batch = 1});
    const at::Tensor other = counting(70, 1, {1, 1, 1});
    EXPECT_EQ(numbers(dense(step.append(0, other, other)).keys), (Numbers{6, 7, 8, 70}));
  }
  EXPECT_EQ(feed(cache, 1), from_to(6, 9));
}

}  // namespace
}  // namespace kvcache
