// How growing storage uses its memory, and what it takes as keys and values.

#include "kvcache/storage/growing_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/counting.h"
#include "tests/support/failing_memory.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::FailingMemory;
using testing::feed;
using testing::numbers;
using testing::stored;
using testing::window;
using Numbers = std::vector<std::int64_t>;

const LayerSpec kFull{};

struct Counted {
  explicit Counted(const std::vector<LayerSpec>& layers)
      : cache(layers, DynamicCacheOptions{.memory = memory}) {}

  std::int64_t allocations_of(const std::function<void()>& call) const {
    const std::int64_t before = memory->allocations();
    call();
    return memory->allocations() - before;
  }

  std::shared_ptr<FailingMemory> memory = std::make_shared<FailingMemory>();
  DynamicCache cache;
};

void feed_one_by_one(Cache& cache, std::int64_t tokens) {
  const at::Tensor one = counting(1, 1, {1, 1, 1});
  for (std::int64_t i = 0; i < tokens; ++i) cache.append(one, one, 0);
}

TEST(GrowingStorage, FullLayersAllocateALogarithmicNumberOfTimes) {
  Counted full({kFull});
  const std::int64_t count = full.allocations_of([&] { feed_one_by_one(full.cache, 10000); });
  EXPECT_LE(count, 2 * 11);  // keys and values; 16, 32 (34, 70, ...) slots up to 10000
  EXPECT_LE(full.cache.allocated_bytes(), 2 * full.cache.nbytes() + 64);
}

TEST(GrowingStorage, SlidingLayersStopAllocating) {
  for (const std::int64_t size : {1, 2, 3, 16, 17, 64, 100}) {
    Counted sliding({window(size)});
    feed_one_by_one(sliding.cache, 4 * size);
    EXPECT_EQ(sliding.allocations_of([&] { feed_one_by_one(sliding.cache, 10000); }), 0)
        << "window " << size;
    EXPECT_LE(sliding.cache.allocated_bytes(), 2 * 4 * std::max<std::int64_t>(4 * size, 16));
  }
}

// Steps of more tokens than a window holds make new buffers, but never more than one pair a window.
TEST(GrowingStorage, SlidingLayersAllocateSeldomInLongerSteps) {
  for (const std::int64_t tokens : {2, 5, 16, 40}) {
    Counted sliding({window(16)});
    const std::int64_t count = sliding.allocations_of([&] {
      for (std::int64_t i = 0; i < 400; ++i) feed(sliding.cache, tokens);
    });
    EXPECT_LE(count, 2 * (400 * tokens / 15 + 3)) << tokens << " tokens a step";
    EXPECT_LE(sliding.memory->peak_bytes(), 2 * 4 * (2 * 64 + 64)) << tokens << " tokens a step";
  }
}

TEST(GrowingStorage, ReserveThenGrowthAllocatesNothing) {
  for (const LayerSpec& spec : {kFull, window(8), window(2), window(1)}) {
    for (const std::int64_t prompt : {1, 7, 50}) {
      Counted reserved({spec});
      reserved.cache.reserve(100);
      feed(reserved.cache, prompt);
      const auto rest = [&] { feed_one_by_one(reserved.cache, 100 - prompt); };
      EXPECT_EQ(reserved.allocations_of(rest), 0) << "window " << spec.window;
      reserved.cache.reserve(300);
      EXPECT_EQ(reserved.allocations_of([&] { feed_one_by_one(reserved.cache, 200); }), 0);
    }
  }
}

TEST(GrowingStorage, ReserveIsExactAndReachesLazyLayers) {
  Counted lazy({});
  lazy.cache.reserve(100);
  for (const std::int64_t layer : {0, 1}) {
    feed(lazy.cache, 80, layer);
    feed(lazy.cache, 20, layer);
  }
  EXPECT_EQ(lazy.cache.allocated_bytes(), 2 * 2 * 100 * 4);
  EXPECT_EQ(lazy.memory->allocations(), 4);
  const std::unique_ptr<Cache> copy = lazy.cache.clone();
  EXPECT_EQ(copy->allocated_bytes(), lazy.cache.allocated_bytes());
}

TEST(GrowingStorage, ReserveWhileRecordingIsNotCutToTheWindow) {
  Counted recording({window(4)});
  recording.cache.activate_past_recording();
  recording.cache.reserve(50);
  feed(recording.cache, 3);
  EXPECT_EQ(recording.allocations_of([&] { feed_one_by_one(recording.cache, 47); }), 0);
}

// 16 layers of window 64 under a prefill of 32k tokens: the prefill passes by the buffers.
TEST(GrowingStorage, LongPrefillUnderAWindowStaysSmall) {
  Counted model(std::vector<LayerSpec>(16, window(64)));
  const std::int64_t tokens = 32 * 1024;
  const at::Tensor states = counting(0, tokens, {1, 1, 1});
  Step step = model.cache.begin_step({.tokens = tokens, .batch = 1});
  for (std::int64_t layer = 0; layer < 16; ++layer) {
    EXPECT_EQ(step.append(layer, states, states).segments[0].keys.const_data_ptr(),
              states.const_data_ptr());
  }
  step.commit();
  EXPECT_LE(model.memory->peak_bytes(), 16 * 2 * 2 * 64 * 4);
  EXPECT_EQ(model.cache.nbytes(), 16 * 2 * 63 * 4);
  EXPECT_EQ(numbers(stored(model.cache)[15].keys).front(), tokens - 63);
}

TEST(GrowingStorage, WindowOfOneAfterACrop) {
  DynamicCache cache({window(1)});
  cache.activate_past_recording();
  feed(cache, 5);
  cache.crop(-2);
  EXPECT_EQ(cache.nbytes(), 0);
  EXPECT_EQ(feed(cache, 1), (Numbers{3}));
  EXPECT_EQ(feed(cache, 2), (Numbers{4, 5}));
  cache.crop(-2);
  EXPECT_EQ(feed(cache, 1), (Numbers{4}));
  cache.reorder_cache(at::zeros({1}, at::kLong));
}

TEST(GrowingStorage, InferenceModeInsideAndOutside) {
  for (const LayerSpec& spec : {kFull, window(3)}) {
    DynamicCache cache({spec});
    at::Tensor made_inside;
    {
      const c10::InferenceMode inference;
      feed(cache, 5);
      made_inside = counting(5, 1, {1, 1, 1});
    }
    EXPECT_TRUE(made_inside.is_inference());
    cache.update(made_inside, made_inside, 0);
    EXPECT_EQ(feed(cache, 1).back(), 6);
    cache.reorder_cache(at::zeros({1}, at::kLong));
    {
      const c10::InferenceMode inference;
      feed(cache, 1);
      cache.reorder_cache(at::zeros({1}, at::kLong));
      cache.batch_repeat_interleave(2);
    }
    cache.batch_select_indices(at::zeros({1}, at::kLong));
    EXPECT_EQ(feed(cache, 1).back(), 8);
    EXPECT_FALSE(stored(cache)[0].keys.is_inference());
    EXPECT_FALSE(stored(cache)[0].keys.requires_grad());
  }
}

TEST(GrowingStorage, RefusesGradients) {
  DynamicCache cache;
  const at::Tensor states = counting(0, 2, {1, 1, 1});
  const at::Tensor learned = counting(0, 2, {1, 1, 1}).requires_grad_(true);
  EXPECT_THROW(cache.update(learned, states, 0), ValueError);
  EXPECT_THROW(cache.update(states, learned, 0), ValueError);
  EXPECT_EQ(cache.layer_count(), 0);
  const at::AutoGradMode gradients(true);
  cache.update(learned.detach(), states, 0);
  EXPECT_EQ(feed(cache, 1), (Numbers{0, 1, 2}));
}

TEST(GrowingStorage, NarrowFloatsAreStoredAsTheyAre) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    DynamicCache cache({window(3)});
    for (std::int64_t at = 0; at < 9; at += 3) {
      const at::Tensor states = counting(at, 3, {1, 2, 2}, dtype);
      const KeyValue all = cache.update(states, states, 0);
      EXPECT_EQ(all.keys.scalar_type(), dtype);
      EXPECT_EQ(numbers(all.values).back(), at + 2);
    }
    const std::int64_t size = dtype == at::kDouble ? 8 : 2;
    EXPECT_EQ(cache.nbytes(), 2 * 2 * 2 * 2 * size);
  }
}

TEST(GrowingStorage, KeysAndValuesOfDifferentHeadSizes) {
  DynamicCache cache({kFull});
  for (const std::int64_t at : {0, 2}) {
    const KeyValue all = cache.update(counting(at, 2, {2, 2, 6}), counting(at, 2, {2, 2, 4}), 0);
    EXPECT_EQ(all.keys.sizes(), at::IntArrayRef({2, 2, at + 2, 6}));
    EXPECT_EQ(all.values.sizes(), at::IntArrayRef({2, 2, at + 2, 4}));
  }
}

// Projections give [batch, tokens, heads, dim], transposed; and rows of a larger batch.
TEST(GrowingStorage, StridedKeysAndValues) {
  for (const LayerSpec& spec : {kFull, window(3)}) {
    DynamicCache cache({spec});
    for (std::int64_t at = 0; at < 16; at += 4) {
      const at::Tensor wide = counting(at, 4, {4, 2, 3});
      const at::Tensor transposed = wide.transpose(1, 2).contiguous().transpose(1, 2);
      const at::Tensor rows = transposed.slice(0, 1, 4, 2);  // rows 1 and 3
      ASSERT_FALSE(rows.is_contiguous());
      const KeyValue all = cache.update(rows, rows, 0);
      EXPECT_EQ(numbers(all.keys, 0).back(), 1000 + at + 3);
      EXPECT_EQ(numbers(all.values, 1).back(), 3000 + at + 3);
    }
    EXPECT_EQ(numbers(stored(cache)[0].keys, 1).back(), 3015);
  }
}

TEST(GrowingStorage, RefusesEmptyAndMisshapenSteps) {
  DynamicCache cache({kFull});
  const at::Tensor good = counting(0, 2, {2, 2, 3});
  EXPECT_THROW(cache.update({}, good, 0), ValueError);
  EXPECT_THROW(cache.update(good[0], good[0], 0), ValueError);
  EXPECT_THROW(cache.update(good.narrow(2, 0, 0), good.narrow(2, 0, 0), 0), ValueError);
  EXPECT_THROW(cache.update(good.narrow(0, 0, 0), good.narrow(0, 0, 0), 0), ValueError);
  EXPECT_THROW(cache.update(good, good.narrow(1, 0, 1), 0), ValueError);
  EXPECT_THROW(cache.update(good.to(at::kLong), good, 0), ValueError);
  EXPECT_EQ(cache.batch_size(), 0);
  cache.update(good, good, 0);
  EXPECT_THROW(cache.update(good.narrow(1, 0, 1), good.narrow(1, 0, 1), 0), ValueError);
  EXPECT_EQ(cache.get_seq_length(), 2);
}

// A failed first step frees the pair's first tensor too, and forgets batch and dtype.
TEST(GrowingStorage, SecondAllocationOfTheFirstStepFails) {
  Counted failing({kFull});
  failing.memory->fail_after(1);
  EXPECT_THROW(feed(failing.cache, 2), c10::OutOfMemoryError);
  EXPECT_EQ(failing.memory->live_bytes(), 0);
  const at::Tensor other = counting(0, 2, {3, 1, 1}, at::kHalf);
  failing.cache.update(other, other, 0);
  EXPECT_EQ(failing.cache.batch_size(), 3);
}

// What is kept is a copy, also of a step that passed by the buffer.
TEST(GrowingStorage, GivenTensorsMayChangeAfterwards) {
  DynamicCache cache({window(3), kFull});
  const at::Tensor scratch = counting(0, 40, {1, 1, 1});
  Step step = cache.begin_step({.tokens = 40, .batch = 1});
  step.append(0, scratch, scratch);
  scratch.add_(100);
  step.append(1, scratch, scratch);
  scratch.zero_();
  step.commit();
  EXPECT_EQ(numbers(stored(cache)[0].keys), (Numbers{38, 39}));
  EXPECT_EQ(numbers(stored(cache)[1].keys).back(), 139);
}

}  // namespace
}  // namespace kvcache
