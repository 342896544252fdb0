#include "kvcache/cache/dynamic_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/counting.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::feed;
using testing::numbers;
using Numbers = std::vector<std::int64_t>;

const LayerSpec kFull{};
const LayerSpec kWindow2{.type = std::string(kSlidingAttention), .window = 2};

TEST(DynamicCache, MakesFullLayersAsKeysComeIn) {
  DynamicCache cache;
  EXPECT_EQ(cache.layer_count(), 0);
  EXPECT_EQ(cache.get_max_length(), -1);
  EXPECT_EQ(feed(cache, 3, 0), (Numbers{0, 1, 2}));
  EXPECT_EQ(feed(cache, 3, 1), (Numbers{0, 1, 2}));
  EXPECT_EQ(feed(cache, 1, 0), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(cache.layer_count(), 2);
  EXPECT_EQ(cache.get_seq_length(0), 4);
  EXPECT_EQ(cache.get_seq_length(1), 3);
}

// The guide's picture: six tokens, a full layer and a window of 2, three taken back.
TEST(DynamicCache, CropAsInTheGuide) {
  DynamicCache cache({kFull, kWindow2});
  cache.activate_past_recording();
  feed(cache, 6, 0);
  feed(cache, 6, 1);
  cache.crop(-3);
  EXPECT_EQ(cache.get_seq_length(0), 3);
  EXPECT_EQ(cache.get_seq_length(1), 3);
  EXPECT_EQ(feed(cache, 1, 0), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(feed(cache, 1, 1), (Numbers{2, 3}));
}

TEST(DynamicCache, StepIsTrueForAllLayersAtOnce) {
  DynamicCache cache({kFull, kWindow2});
  const at::Tensor states = counting(0, 3, {2, 2, 4});
  {
    Step step = cache.begin_step({.tokens = 3, .batch = 2});
    step.append(0, states, states);
    EXPECT_THROW(step.commit(), RuntimeError);  // layer 1 had no turn
    EXPECT_THROW(cache.begin_step({.tokens = 1, .batch = 2}), RuntimeError);
  }
  EXPECT_EQ(cache.get_seq_length(), 0);
  EXPECT_EQ(cache.allocated_bytes(), 0);
  Step step = cache.begin_step({.tokens = 3, .batch = 2});
  step.append(0, states, states);
  step.append(1, states, states);
  step.commit();
  EXPECT_EQ(cache.get_seq_length(0), 3);
  EXPECT_EQ(cache.get_seq_length(1), 3);
  EXPECT_EQ(cache.history().seen(), 3);
  EXPECT_EQ(cache.nbytes(), 2 * 2 * 2 * 4 * 4 * (3 + 1));
}

TEST(DynamicCache, RowOperations) {
  DynamicCache cache({kFull});
  const at::Tensor states = counting(0, 2, {3, 2, 2});
  cache.update(states, states, 0);
  cache.reorder_cache(at::tensor({2, 0, 1}, at::kLong));
  cache.batch_select_indices(at::tensor({0, 2}, at::kLong));
  cache.batch_repeat_interleave(2);
  const at::Tensor next = counting(2, 1, {4, 2, 2});
  const KeyValue all = cache.update(next, next, 0);
  EXPECT_EQ(numbers(all.keys, 0), (Numbers{2000, 2001, 2}));
  EXPECT_EQ(numbers(all.keys, 1), (Numbers{2000, 2001, 1002}));
  EXPECT_EQ(numbers(all.values, 2), (Numbers{1000, 1001, 2002}));
  EXPECT_EQ(numbers(all.values, 3), (Numbers{1000, 1001, 3002}));
  EXPECT_THROW(cache.batch_select_indices(at::tensor({4}, at::kLong)), ValueError);
  EXPECT_THROW(cache.reorder_cache(at::tensor({0}, at::kLong)), ValueError);
}

// What update() returned may be handed back in: the storage does not move it before it is read.
TEST(DynamicCache, TakesItsOwnViewsBackIn) {
  const LayerSpec window6{.type = std::string(kSlidingAttention), .window = 6};
  DynamicCache ours({window6}), control({window6});
  at::Tensor fed = counting(0, 3, {1, 2, 2}), copy = fed;
  for (int i = 0; i < 60; ++i) {
    const at::Tensor kept = ours.update(fed, fed, 0).keys;
    const at::Tensor expected = control.update(copy, copy, 0).keys.clone();
    ASSERT_TRUE(kept.equal(expected)) << "round " << i;
    const std::int64_t tokens = 1 + i % 3, first = i % (kept.size(2) - tokens + 1);
    fed = kept.narrow(2, first, tokens);
    copy = expected.narrow(2, first, tokens).clone();
  }
}

TEST(DynamicCache, RefusesSizesBeyondReason) {
  DynamicCache cache;
  const at::Tensor states = counting(0, 1, {1, 1, 1});
  EXPECT_THROW(cache.update(states, states, 3'000'000), ValueError);
  EXPECT_EQ(cache.layer_count(), 0);
  EXPECT_THROW(cache.update(at::ones({1, 0, 1, 8}), at::ones({1, 0, 1, 8}), 0), ValueError);
  EXPECT_THROW(cache.reserve(std::numeric_limits<std::int64_t>::max()), ValueError);
  EXPECT_THROW(cache.begin_step({.tokens = std::numeric_limits<std::int64_t>::max(), .batch = 1}),
               ValueError);
  EXPECT_THROW(cache.begin_step({.tokens = 1, .batch = 1, .valid = at::full({1, 1}, 0.5)}),
               ValueError);
  EXPECT_THROW(cache.get_mask_sizes(-5, 0), ValueError);
  cache.update(states, states, 0);
  EXPECT_THROW(cache.batch_repeat_interleave(std::numeric_limits<std::int64_t>::max()), ValueError);
  EXPECT_EQ(cache.get_seq_length(), 1);
}

}  // namespace
}  // namespace kvcache
