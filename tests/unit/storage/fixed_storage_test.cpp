// How fixed storage uses its buffers: what steps are handed, what is copied, what is never moved.

#include "kvcache/storage/fixed_storage.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/failing_memory.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::buffers;
using testing::counting;
using testing::FailingMemory;
using testing::feed;
using testing::numbers;
using testing::stored;
using testing::window;
using Numbers = std::vector<std::int64_t>;

const LayerSpec kFull{};

View append(Cache& cache, std::int64_t tokens) {
  const at::Tensor states = counting(cache.get_seq_length(), tokens, {1, 1, 1});
  return cache.append(states, states, 0);
}

std::vector<Numbers> segments(const View& view) {
  std::vector<Numbers> result;
  for (const Segment& segment : view.segments) result.push_back(numbers(segment.keys));
  return result;
}

// Attention reads what is filled, where it lies.
TEST(FixedStorage, ViewsEndWithWhatIsFilled) {
  StaticCache cache({kFull}, {.max_cache_len = 1000});
  for (const std::int64_t tokens : {5, 1, 3}) {
    const View view = append(cache, tokens);
    ASSERT_EQ(view.segments.size(), 1U);
    EXPECT_EQ(view.segments[0].length(), cache.get_seq_length());
    EXPECT_EQ(view.segments[0].keys.const_data_ptr(), buffers(cache)[0].keys.const_data_ptr());
  }
  EXPECT_EQ(cache.get_mask_sizes(1, 0), std::pair(std::int64_t{1000}, std::int64_t{0}));
  EXPECT_EQ(cache.nbytes(), 2 * 4 * 9);
  EXPECT_EQ(cache.allocated_bytes(), 2 * 4 * 1000);
}

TEST(FixedStorage, RingViewsAreInTimeOrder) {
  StaticCache cache({window(4)}, {.max_cache_len = 64});
  EXPECT_EQ(segments(append(cache, 3)), (std::vector<Numbers>{{0, 1, 2}}));
  EXPECT_EQ(segments(append(cache, 1)), (std::vector<Numbers>{{0, 1, 2, 3}}));
  EXPECT_EQ(segments(append(cache, 1)), (std::vector<Numbers>{{1, 2, 3}, {4}}));
  EXPECT_EQ(segments(append(cache, 1)), (std::vector<Numbers>{{2, 3}, {4, 5}}));
  EXPECT_EQ(segments(append(cache, 3)), (std::vector<Numbers>{{3}, {4, 5}, {6, 7, 8}}));
  EXPECT_EQ(segments(append(cache, 1)), (std::vector<Numbers>{{6, 7}, {8, 9}}));
  EXPECT_EQ(segments(append(cache, 9)),
            (std::vector<Numbers>{{7}, {8, 9}, {10, 11, 12, 13, 14, 15, 16, 17, 18}}));
  EXPECT_EQ(segments(append(cache, 1)), (std::vector<Numbers>{{16, 17, 18, 19}}));
}

TEST(FixedStorage, OneTokenStepsAllocateNothing) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache cache({window(4), kFull}, {.max_cache_len = 300, .memory = memory});
  for (const std::int64_t layer : {0, 1}) feed(cache, 50, layer);
  const std::int64_t before = memory->allocations();
  for (int i = 0; i < 250; ++i) {
    for (const std::int64_t layer : {0, 1}) feed(cache, 1, layer);
  }
  EXPECT_EQ(memory->allocations(), before);
  EXPECT_EQ(memory->live_bytes(), 2 * 4 * (4 + 300));
}

// The queries of a long prefill read the given tensors; the rings take its end.
TEST(FixedStorage, LongPrefillPassesByTheRing) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache model(std::vector<LayerSpec>(16, window(64)),
                    {.max_cache_len = 100'000, .memory = memory});
  for (const bool warm : {false, true}) {
    const std::int64_t tokens = 32 * 1024, seen = model.get_seq_length();
    const at::Tensor states = counting(seen, tokens, {1, 1, 1});
    Step step = model.begin_step({.tokens = tokens, .batch = 1});
    for (std::int64_t layer = 0; layer < 16; ++layer) {
      const View view = step.append(layer, states, states);
      EXPECT_EQ(view.segments.back().keys.const_data_ptr(), states.const_data_ptr());
    }
    step.commit();
    EXPECT_LE(memory->peak_bytes(), 16 * 2 * 4 * (warm ? 2 * 64 : 64));
    EXPECT_EQ(numbers(stored(model)[15].keys).front(), seen + tokens - 63);
    EXPECT_EQ(memory->live_bytes(), 16 * 2 * 4 * 64);
  }
}

TEST(FixedStorage, SlackTakesLongerStepsInPlace) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache cache({window(4)}, {.max_cache_len = 300, .record_slack = 4, .memory = memory});
  feed(cache, 6);
  const std::int64_t before = memory->allocations();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(append(cache, 5).visible.length, 8);
  EXPECT_EQ(memory->allocations(), before);
  EXPECT_EQ(cache.allocated_bytes(), 2 * 4 * 8);
}

// Memory that is not cleared: what was there before must not be read.
class PoisonedMemory final : public Memory {
 public:
  at::Tensor allocate(at::IntArrayRef shape, const BufferOptions& options) override {
    return TorchMemory().allocate(shape, options).fill_(std::numeric_limits<float>::quiet_NaN());
  }
};

TEST(FixedStorage, PaddingIsZero) {
  StaticCache cache({kFull}, {.max_cache_len = 6, .memory = std::make_shared<PoisonedMemory>()});
  EXPECT_EQ(feed(cache, 2), (Numbers{0, 1, 0, 0, 0, 0}));
  feed(cache, 2);
  cache.crop(-2);
  EXPECT_EQ(feed(cache, 1), (Numbers{0, 1, 2, 0, 0, 0}));
  cache.batch_repeat_interleave(2);
  const at::Tensor two = counting(3, 1, {2, 1, 1});
  const KeyValue all = cache.update(two, two, 0);
  EXPECT_EQ(numbers(all.keys, 0), (Numbers{0, 1, 2, 3, 0, 0}));
  EXPECT_EQ(numbers(all.values, 1), (Numbers{0, 1, 2, 1003, 0, 0}));
  EXPECT_EQ(all.keys.const_data_ptr(), buffers(cache)[0].keys.const_data_ptr());
}

TEST(FixedStorage, InferenceModeInsideAndOutside) {
  for (const LayerSpec& spec : {kFull, window(3)}) {
    StaticCache cache({spec}, {.max_cache_len = 32});
    at::Tensor made_inside;
    {
      const c10::InferenceMode inference;
      feed(cache, 5);
      made_inside = counting(5, 1, {1, 1, 1});
    }
    cache.update(made_inside, made_inside, 0);
    {
      const c10::InferenceMode inference;
      feed(cache, 4);
      cache.reorder_cache(at::zeros({1}, at::kLong));
    }
    feed(cache, 1);
    EXPECT_EQ(numbers(stored(cache)[0].keys).back(), 10);
    EXPECT_FALSE(buffers(cache)[0].keys.is_inference());
  }
}

// What update() returned, padding included, may be handed back in.
TEST(FixedStorage, TakesItsOwnViewsBackIn) {
  StaticCache cache({kFull}, {.max_cache_len = 8});
  at::Tensor all = cache.update(counting(0, 2, {1, 1, 1}), counting(0, 2, {1, 1, 1}), 0).keys;
  const at::Tensor again = all.narrow(2, 1, 3);  // 1 and two of padding
  EXPECT_EQ(numbers(cache.update(again, again, 0).keys), (Numbers{0, 1, 1, 0, 0, 0, 0, 0}));
}

TEST(FixedStorage, GivenTensorsMayChangeAfterwards) {
  StaticCache cache({window(3), kFull}, {.max_cache_len = 64});
  for (int i = 0; i < 2; ++i) {
    const at::Tensor scratch = counting(20 * i, 20, {1, 1, 1});
    Step step = cache.begin_step({.tokens = 20, .batch = 1});
    step.append(0, scratch, scratch);
    scratch.add_(100);
    step.append(1, scratch, scratch);
    scratch.zero_();
    step.commit();
    EXPECT_EQ(numbers(stored(cache)[0].keys), (Numbers{20 * i + 18, 20 * i + 19}));
    EXPECT_EQ(numbers(stored(cache)[1].keys).back(), 20 * i + 119);
  }
}

// Tokens that have yet to reach their slots, cropped, copied and read.
TEST(FixedStorage, WhatIsOwedIsNotLost) {
  for (const bool in_a_copy : {false, true}) {
    StaticCache cache({window(4)}, {.max_cache_len = 64, .record_slack = 3});
    cache.activate_past_recording();
    append(cache, 10);
    append(cache, 5);
    cache.crop(-2);
    const std::unique_ptr<Cache> copy = cache.clone();
    EXPECT_EQ(feed(in_a_copy ? *copy : cache, 1), (Numbers{10, 11, 12, 13}));
  }
}

// What is held is read where it lies: in its slots, and what a long step left beside them.
TEST(FixedStorage, ReadsWithoutAppending) {
  FixedStorage storage({.columns = 4, .ring = true}, std::make_shared<TorchMemory>());
  EXPECT_TRUE(storage.read({}).segments.empty());
  const auto step = [&](std::int64_t seen, std::int64_t tokens) {
    const at::Tensor states = counting(seen, tokens, {1, 1, 1});
    storage.stage({.keys = states,
                   .values = states,
                   .seen = seen,
                   .visible = {.length = tokens, .offset = seen},
                   .keep_from = seen + tokens - 3});
    storage.publish();
  };
  step(0, 5);
  EXPECT_EQ(segments(storage.read({.length = 3, .offset = 2})),
            (std::vector<Numbers>{{2, 3}, {4}}));
  step(5, 2);
  EXPECT_EQ(segments(storage.read({.length = 3, .offset = 4})),
            (std::vector<Numbers>{{4}, {5, 6}}));
  storage.trim({4, 6});
  EXPECT_EQ(segments(storage.read({.length = 2, .offset = 4})), (std::vector<Numbers>{{4}, {5}}));
  storage.settle();
  EXPECT_EQ(segments(storage.read({.length = 2, .offset = 4})), (std::vector<Numbers>{{4, 5}}));
}

TEST(FixedStorage, RefusesATokenTooManyByItself) {
  FixedStorage storage({.columns = 2}, std::make_shared<TorchMemory>());
  const at::Tensor states = counting(0, 3, {1, 1, 1});
  EXPECT_THROW(
      storage.stage(
          {.keys = states, .values = states, .seen = 0, .visible = {.length = 3}, .keep_from = 0}),
      ValueError);
}

}  // namespace
}  // namespace kvcache
