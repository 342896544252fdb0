// Row operations on a decoder's cache with an encoder's beside it.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "tests/support/counting.h"
#include "tests/support/encoder_decoder.h"
#include "tests/support/failing_memory.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using testing::encoder_input;
using testing::FailingMemory;
using testing::ids_tensor;
using testing::numbers;
using testing::run;
using testing::stored;

const LayerSpec kFull{};

EncoderDecoderCache two_layers() {
  return {DynamicCache({kFull, kFull}), DynamicCache({kFull, kFull})};
}

// Rows of the decoder, told apart by their own keys, each with its encoder row's first id.
std::vector<std::pair<std::int64_t, std::int64_t>> pairs(EncoderDecoderCache& cache) {
  const at::Tensor own = stored(cache.self_attention_cache())[1].keys;
  const at::Tensor encoded = stored(cache.cross_attention_cache())[1].keys;
  const std::int64_t share = own.size(0) / encoded.size(0);
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  for (std::int64_t row = 0; row < own.size(0); ++row) {
    result.emplace_back(numbers(own, row)[0] / testing::kRowStep, numbers(encoded, row / share)[0]);
  }
  return result;
}

TEST(EncoderDecoderRows, F43BeamsShareTheKeysOfTheirEncoderRow) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 2, 6, encoder_input(10, 4, 2));  // three beams for each of two inputs
  LayeredCache& cross = cache.cross_attention_cache();
  const auto encoded = [&] { return stored(cross)[0].keys; };
  const at::Tensor before = encoded();
  const auto version = before._version();
  EXPECT_EQ(before.size(0), 2);
  cache.reorder_cache(ids_tensor({{2, 0, 0, 4, 5, 4}})[0]);
  EXPECT_EQ(encoded().const_data_ptr(), before.const_data_ptr());
  EXPECT_EQ(before._version(), version);
  EXPECT_THAT(pairs(cache), ElementsAre(std::pair(2, 10), std::pair(0, 10), std::pair(0, 10),
                                        std::pair(4, 60), std::pair(5, 60), std::pair(4, 60)));
  cache.batch_repeat_interleave(2);
  EXPECT_EQ(cache.batch_size(), 12);
  EXPECT_EQ(encoded().const_data_ptr(), before.const_data_ptr());
  EXPECT_THAT(run(cache, 1, 12, std::nullopt).cross[1], ElementsAre(60, 61, 62, 63));
}

TEST(EncoderDecoderRows, RowsThatLeaveTheirNeighboursTakeTheirEncoderRowAlong) {
  const auto fresh = [] {
    EncoderDecoderCache cache = two_layers();
    run(cache, 2, 4, encoder_input(10, 3, 2));
    return cache;
  };
  EncoderDecoderCache swapped = fresh();
  const at::Tensor before = stored(swapped.cross_attention_cache())[0].keys;
  swapped.reorder_cache(ids_tensor({{3, 2, 0, 0}})[0]);
  EXPECT_EQ(stored(swapped.cross_attention_cache())[0].keys.const_data_ptr(),
            before.const_data_ptr());
  EXPECT_THAT(pairs(swapped),
              ElementsAre(std::pair(3, 60), std::pair(2, 60), std::pair(0, 10), std::pair(0, 10)));
  EncoderDecoderCache mixed = fresh();
  mixed.reorder_cache(ids_tensor({{0, 2, 1, 1}})[0]);
  EXPECT_EQ(mixed.cross_attention_cache().batch_size(), 4);
  EXPECT_THAT(pairs(mixed),
              ElementsAre(std::pair(0, 10), std::pair(2, 60), std::pair(1, 10), std::pair(1, 10)));
  EncoderDecoderCache chosen = fresh();
  chosen.batch_select_indices(ids_tensor({{3, 3, 2, 3}})[0]);
  EXPECT_EQ(chosen.cross_attention_cache().batch_size(), 1);
  EXPECT_THAT(pairs(chosen),
              ElementsAre(std::pair(3, 60), std::pair(3, 60), std::pair(2, 60), std::pair(3, 60)));
  EXPECT_THAT(run(chosen, 1, 4, std::nullopt).cross[0], ElementsAre(60, 61, 62));
  EncoderDecoderCache one = fresh();
  one.batch_select_indices(ids_tensor({{1}})[0]);
  EXPECT_THAT(pairs(one), ElementsAre(std::pair(1, 10)));
  EXPECT_THROW(one.batch_select_indices(ids_tensor({{1}})[0]), ValueError);
  EXPECT_THROW(one.reorder_cache(ids_tensor({{0, 0}})[0]), ValueError);
}

// Whichever allocation fails, of either part, no row has changed.
TEST(EncoderDecoderRows, RowsChangeInBothPartsOrInNone) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> before{{0, 10}, {1, 60}};
  for (const bool in_place : {true, false}) {
    const at::Tensor rows = in_place ? ids_tensor({{1, 0}})[0] : ids_tensor({{1, 0, 1}})[0];
    std::vector after{before[1], before[0]};
    if (!in_place) after.push_back(before[1]);
    for (std::int64_t allowed = 0; allowed < 10; ++allowed) {
      const auto memory = std::make_shared<FailingMemory>();
      EncoderDecoderCache cache(DynamicCache({kFull, kFull}, {.memory = memory}),
                                DynamicCache({kFull, kFull}, {.memory = memory}));
      run(cache, 2, 2, encoder_input(10, 3, 2));
      memory->fail_after(allowed);
      try {
        cache.batch_select_indices(rows);
        EXPECT_GE(allowed, in_place ? 2 : 8);
        EXPECT_EQ(pairs(cache), after);
        break;
      } catch (const c10::OutOfMemoryError&) {
        EXPECT_EQ(pairs(cache), before);
      }
    }
  }
}

TEST(EncoderDecoderRows, JoinedCachesKeepTheirEncoderRows) {
  EncoderDecoderCache a = two_layers(), b = two_layers();
  run(a, 2, 2, encoder_input(10, 3));     // two rows of one input
  run(b, 3, 2, encoder_input(20, 4, 2));  // a row of each of two
  const auto joined = a.concatenate({&b});
  auto& pair = dynamic_cast<EncoderDecoderCache&>(*joined);
  EXPECT_EQ(pair.batch_size(), 4);
  EXPECT_EQ(pair.cross_attention_cache().batch_size(), 4);
  EXPECT_EQ(pair.get_seq_length(), 3);
  Step step = pair.begin_step({.tokens = 1, .batch = 4});
  EXPECT_TRUE(step.cross_valid()->equal(
      ids_tensor({{0, 1, 1, 1}, {0, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}}).to(at::kBool)));
  const at::Tensor keys = dense(step.cross_view(1)).keys;
  EXPECT_THAT(numbers(keys.narrow(2, 1, 3), 1), ElementsAre(10, 11, 12));
  EXPECT_THAT(numbers(keys, 3), ElementsAre(70, 71, 72, 73));
  EncoderDecoderCache empty = two_layers();
  EXPECT_THROW(a.concatenate({&empty}), ValueError);
  DynamicCache other({kFull, kFull});
  EXPECT_THROW(a.concatenate({&other}), ValueError);
  const auto halves = a.batch_split(1);
  EXPECT_EQ(halves.size(), 2U);
  EXPECT_EQ(halves[1]->batch_size(), 1);
}

// As its rows once more, like a cache of one stack of layers.
TEST(EncoderDecoderRows, ACacheJoinedWithItself) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 2, 2, encoder_input(10, 3));
  const auto joined = cache.concatenate({&cache, &cache});
  auto& pair = dynamic_cast<EncoderDecoderCache&>(*joined);
  EXPECT_EQ(pair.cross_attention_cache().batch_size(), 3);
  EXPECT_THAT(pairs(pair), ElementsAre(std::pair(0, 10), std::pair(1, 10), std::pair(0, 10),
                                       std::pair(1, 10), std::pair(0, 10), std::pair(1, 10)));
}

TEST(EncoderDecoderRows, MarksForksAndExpansion) {
  EncoderDecoderCache cache = two_layers();
  run(cache, 2, 1, encoder_input(10, 3));
  const Snapshot mark = cache.snapshot();
  cache.expand(3);
  EXPECT_EQ(cache.batch_size(), 3);
  EXPECT_EQ(cache.cross_attention_cache().batch_size(), 1);
  EXPECT_THAT(run(cache, 1, 3, std::nullopt).cross[0], ElementsAre(10, 11, 12));
  const auto fork = cache.fork();
  auto& other = dynamic_cast<EncoderDecoderCache&>(*fork);
  EXPECT_EQ(stored(other.cross_attention_cache())[0].keys.const_data_ptr(),
            stored(cache.cross_attention_cache())[0].keys.const_data_ptr());
  cache.reset();
  run(cache, 4, 1, encoder_input(20, 2));
  cache.restore(mark);
  EXPECT_EQ(cache.get_seq_length(), 2);
  EXPECT_THAT(run(cache, 1, 1, encoder_input(10, 3)).cross[0], ElementsAre(10, 11, 12));
  EXPECT_EQ(fork->get_seq_length(), 3);
  DynamicCache plain({kFull, kFull});
  EXPECT_THROW(cache.restore(plain.snapshot()), ValueError);
  EXPECT_EQ(cache.get_seq_length(), 3);
  EXPECT_EQ(cache.reusable_prefix(2), 2);
}

}  // namespace
}  // namespace kvcache
