// Rows that leave a cache for a while and come back: move_out(), copy_rows(), put_together(), and
// padding that moves to the front instead.
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

const LayerSpec kFull{};

at::Tensor rows(const Numbers& indices) { return at::tensor(indices, at::kLong); }

// Feeds counting keys and ids to all layers; `valid`: which rows get a token.
void step(Cache& cache, std::int64_t tokens, std::int64_t batch,
          const std::optional<at::Tensor>& valid = {}) {
  auto& layered = static_cast<LayeredCache&>(cache);
  const std::int64_t seen = cache.history().seen();
  const at::Tensor ids = at::arange(100 + seen, 100 + seen + tokens).expand({batch, tokens});
  Step open =
      cache.begin_step({.tokens = tokens, .batch = batch, .ids = ids.contiguous(), .valid = valid});
  const at::Tensor states = counting(seen, tokens, {batch, 1, 1});
  for (std::int64_t i = 0; i < layered.layer_count(); ++i) open.append(i, states, states);
  open.commit();
}

Numbers held(Cache& cache, std::size_t layer, std::int64_t row) {
  return numbers(stored(static_cast<LayeredCache&>(cache))[layer].keys, row);
}

// Rows 1 and 2 of three go on for two tokens without row 0, and come back in another order.
void leave_and_come_back(Cache& cache) {
  const std::unique_ptr<Cache> moved = cache.move_out();
  EXPECT_EQ(cache.batch_size(), 0);
  EXPECT_EQ(cache.get_seq_length(), 0);
  const std::unique_ptr<Cache> first = moved->copy_rows(rows({0}));
  moved->batch_select_indices(rows({1, 2}));
  step(*moved, 2, 2);
  cache.put_together({moved.get(), first.get()}, rows({2, 1, 0}));
  for (Cache* part : {moved.get(), first.get()}) {
    EXPECT_EQ(part->batch_size(), 0);
    EXPECT_EQ(part->nbytes(), 0);
  }
}

TEST(MovedRows, ComeBackBehindPadding) {
  const std::vector<LayerSpec> layers{window(4), kFull};
  DynamicCache growing(layers);
  StaticCache fixed(layers, {.max_cache_len = 16});
  for (LayeredCache* cache :
       {static_cast<LayeredCache*>(&growing), static_cast<LayeredCache*>(&fixed)}) {
    step(*cache, 3, 3);
    const void* keys = buffers(*cache)[1].keys.const_data_ptr();
    leave_and_come_back(*cache);
    EXPECT_EQ(cache->batch_size(), 3);
    EXPECT_EQ(cache->get_seq_length(), 5);
    EXPECT_EQ(held(*cache, 1, 0), Numbers({0, 0, 0, 1, 2}));
    EXPECT_EQ(held(*cache, 1, 1), Numbers({2000, 2001, 2002, 1003, 1004}));
    EXPECT_EQ(held(*cache, 1, 2), Numbers({1000, 1001, 1002, 3, 4}));
    EXPECT_EQ(held(*cache, 0, 0), Numbers({0, 1, 2}));
    EXPECT_EQ(held(*cache, 0, 1), Numbers({2002, 1003, 1004}));
    EXPECT_TRUE(cache->history().valid().equal(
        ids_tensor({{0, 0, 1, 1, 1}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}}).to(at::kBool)));
    if (cache == &fixed) {
      EXPECT_EQ(buffers(*cache)[1].keys.const_data_ptr(), keys);
    }
    step(*cache, 1, 3);
    EXPECT_EQ(held(*cache, 1, 0), Numbers({0, 0, 0, 1, 2, 5}));
    EXPECT_EQ(held(*cache, 0, 0), Numbers({1, 2, 5}));
  }
}

TEST(MovedRows, GrowingKeysMoveWithoutACopyAndKeepWhatWasReserved) {
  const auto memory = std::make_shared<FailingMemory>();
  DynamicCache cache(std::vector<LayerSpec>{kFull}, {.memory = memory});
  cache.reserve(100);
  step(cache, 3, 3);
  const std::int64_t allocations = memory->allocations();
  const void* keys = buffers(cache)[0].keys.const_data_ptr();
  const std::unique_ptr<Cache> moved = cache.move_out();
  EXPECT_EQ(memory->allocations(), allocations);
  EXPECT_EQ(buffers(static_cast<LayeredCache&>(*moved))[0].keys.const_data_ptr(), keys);
  cache.put_together({moved.get()}, rows({0, 1, 2}));
  step(cache, 1, 3);
  const std::int64_t after_one = memory->allocations();
  for (int i = 0; i < 90; ++i) step(cache, 1, 3);
  EXPECT_EQ(memory->allocations(), after_one);
  EXPECT_EQ(held(cache, 0, 2).size(), 94U);
}

TEST(MovedRows, CopiesOfRowsOverOnePrefixShareIt) {
  const auto memory = std::make_shared<FailingMemory>();
  DynamicCache cache(std::vector<LayerSpec>{kFull}, {.memory = memory});
  step(cache, 100, 1);
  EXPECT_FALSE(cache.has_bound_rows());
  cache.expand(4);
  EXPECT_TRUE(cache.has_bound_rows());
  step(cache, 1, 4);
  const std::int64_t before = memory->live_bytes();
  const std::unique_ptr<Cache> copy = cache.copy_rows(rows({3, 1}));
  EXPECT_LT(memory->live_bytes() - before, 100 * 4);
  Numbers right = from_to(0, 99);
  right.push_back(3100);
  EXPECT_EQ(held(*copy, 0, 0), right);
}

TEST(MovedRows, RefusedPartsStayWhole) {
  DynamicCache cache(std::vector<LayerSpec>{kFull});
  step(cache, 3, 2);
  const std::unique_ptr<Cache> part = cache.copy_rows(rows({1, 0}));
  const auto refused = [&](Cache& into, const std::vector<Cache*>& parts, const Numbers& order) {
    const std::string message =
        refusal<std::exception>([&] { into.put_together(parts, rows(order)); });
    EXPECT_EQ(held(*part, 0, 0), Numbers({1000, 1001, 1002}));
    return message;
  };
  EXPECT_THAT(refused(cache, {part.get()}, {0, 1}),
              HasSubstr("holds no tokens, but this one has seen 3"));
  cache.reset();
  EXPECT_THAT(refused(cache, {part.get()}, {0, 2}), HasSubstr("row index 2 is out of range"));
  EXPECT_THAT(refused(cache, {part.get(), nullptr}, {0, 1}), HasSubstr("null"));
  EXPECT_THAT(refused(cache, {&cache}, {0, 1}), HasSubstr("the cache itself"));
  DynamicCache other(std::vector<LayerSpec>{window(4)});
  EXPECT_THAT(refused(other, {part.get()}, {0, 1}), HasSubstr("layer 0"));
  EXPECT_THAT(refusal<ValueError>([&] { part->copy_rows(rows({2})); }), HasSubstr("row index 2"));
}

TEST(MovedRows, PaddingMovesToTheFront) {
  StaticCache cache(std::vector<LayerSpec>{kFull, kFull}, {.max_cache_len = 8});
  step(cache, 3, 2);
  step(cache, 2, 2, ids_tensor({{0, 0}, {1, 1}}).to(at::kBool));
  const void* keys = buffers(cache)[0].keys.const_data_ptr();
  EXPECT_TRUE(cache.has_bound_rows());
  ASSERT_TRUE(cache.move_padding_to_front({2, 0}));
  EXPECT_EQ(held(cache, 1, 0), Numbers({0, 0, 0, 1, 2}));
  EXPECT_EQ(held(cache, 1, 1), Numbers({1000, 1001, 1002, 1003, 1004}));
  EXPECT_TRUE(
      cache.history().valid().equal(ids_tensor({{0, 0, 1, 1, 1}, {1, 1, 1, 1, 1}}).to(at::kBool)));
  EXPECT_TRUE(cache.history().ids()[0].equal(at::tensor({0, 0, 100, 101, 102}, at::kLong)));
  EXPECT_EQ(buffers(cache)[0].keys.const_data_ptr(), keys);
  step(cache, 1, 2);
  EXPECT_EQ(held(cache, 0, 0), Numbers({0, 0, 0, 1, 2, 5}));
}

TEST(MovedRows, PaddingStaysWhereTokensCannotMove) {
  const auto stays = [](LayeredCache& cache, std::int64_t batch) {
    const Numbers before = held(cache, 0, 0);
    std::vector<std::int64_t> padding(static_cast<std::size_t>(batch), 1);
    EXPECT_FALSE(cache.move_padding_to_front(padding));
    EXPECT_EQ(held(cache, 0, 0), before);
    EXPECT_TRUE(cache.history().all_valid());
  };
  DynamicCache sliding(std::vector<LayerSpec>{window(4)}), shared(std::vector<LayerSpec>{kFull}),
      forked(std::vector<LayerSpec>{kFull});
  step(sliding, 6, 2);
  stays(sliding, 2);
  step(shared, 3, 1);
  shared.expand(2);
  stays(shared, 2);
  step(forked, 3, 2);
  const std::unique_ptr<Cache> fork = forked.fork();
  stays(forked, 2);
  EXPECT_THAT(refusal<ValueError>([&] { forked.move_padding_to_front({1}); }), HasSubstr("rows"));
  EXPECT_THAT(refusal<ValueError>([&] {
                forked.move_padding_to_front({1, 4});
              }),
              HasSubstr("4 tokens of padding among its 3"));
}

}  // namespace
}  // namespace kvcache::testing
