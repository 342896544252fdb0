// Caches that share what they hold: forks of a prefix, and rows over one prefix.

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/counting.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

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

const LayerSpec kFull{};

Numbers held(Cache& cache, std::int64_t row = 0) {
  return numbers(stored(static_cast<LayeredCache&>(cache))[0].keys, row);
}

// Appends one token whose key is `number` in every row, plus 1000 a row.
View append(Cache& cache, std::int64_t number) {
  const std::int64_t rows = std::max<std::int64_t>(cache.batch_size(), 1);
  const at::Tensor states = counting(number, 1, {rows, 1, 1});
  return cache.append(states, states, 0);
}

struct Counted {
  explicit Counted(const LayerSpec& layer = kFull)
      : cache(std::vector<LayerSpec>{layer}, DynamicCacheOptions{.memory = memory}) {}

  std::shared_ptr<FailingMemory> memory = std::make_shared<FailingMemory>();
  DynamicCache cache;
};

TEST(Fork, TakesNoMemoryUntilWrittenTo) {
  Counted prefix;
  feed(prefix.cache, 100);
  const std::int64_t allocations = prefix.memory->allocations();
  std::vector<std::unique_ptr<Cache>> forks;
  for (int i = 0; i < 16; ++i) forks.push_back(prefix.cache.fork());
  EXPECT_EQ(prefix.memory->allocations(), allocations);
  for (const auto& fork : forks) {
    EXPECT_EQ(fork->kind(), "dynamic");
    EXPECT_NE(dynamic_cast<DynamicCache*>(fork.get()), nullptr);
    EXPECT_EQ(held(*fork), from_to(0, 99));
  }
  // 16 tails beside one prefix.
  const std::int64_t prefix_bytes = prefix.memory->live_bytes();
  for (const auto& fork : forks) append(*fork, 500);
  EXPECT_EQ(prefix.memory->live_bytes(), prefix_bytes + 16 * 2 * 16 * 4);
}

TEST(Fork, BothSidesGoOnApart) {
  Counted source;
  feed(source.cache, 5);
  const std::unique_ptr<Cache> fork = source.cache.fork();
  append(source.cache, 50);
  append(*fork, 70);
  append(*fork, 71);
  EXPECT_EQ(held(source.cache), Numbers({0, 1, 2, 3, 4, 50}));
  EXPECT_EQ(held(*fork), Numbers({0, 1, 2, 3, 4, 70, 71}));
  source.cache.crop(-4);
  append(source.cache, 90);
  EXPECT_EQ(held(source.cache), Numbers({0, 1, 90}));
  EXPECT_EQ(held(*fork), Numbers({0, 1, 2, 3, 4, 70, 71}));
  source.cache.reset();
  EXPECT_EQ(held(*fork), Numbers({0, 1, 2, 3, 4, 70, 71}));
  fork->crop(-7);
  EXPECT_EQ(fork->get_seq_length(), 0);
  append(*fork, 8);
  EXPECT_EQ(held(*fork), Numbers({8}));
}

// What marks and splits leave behind, too: parts of a text that was taken back are not in the way
// of the next one.
TEST(Fork, CropsToNothingAfterSeveralForks) {
  using Share = std::function<std::unique_ptr<Cache>(Cache&)>;
  const std::vector<Share> shares = {
      [](Cache& cache) { return cache.fork(); },
      [](Cache& cache) { return std::move(cache.batch_split(1)[0]); },
      [](Cache& cache) { return cache.snapshot().state().fork(); }};
  for (const LayerSpec& layer : {kFull, window(3), window(1)}) {
    for (const Share& share : shares) {
      for (std::int64_t forks = 1; forks <= 10; ++forks) {
        Counted source(layer);
        source.cache.activate_past_recording();
        std::vector<std::unique_ptr<Cache>> others;
        for (std::int64_t i = 0; i < forks; ++i) {
          feed(source.cache, 2);
          others.push_back(share(source.cache));
        }
        for (Cache* cache : {static_cast<Cache*>(&source.cache), others.back().get()}) {
          ASSERT_TRUE(cache->can_crop(2 * forks));
          cache->crop(-2 * forks);
          EXPECT_EQ(held(*cache), Numbers());
          EXPECT_EQ(cache->fork()->clone()->nbytes(), 0);
          const View view = append(*cache, 10);
          ASSERT_EQ(view.segments.size(), 1U);
          EXPECT_EQ(numbers(view.segments[0].keys), Numbers({10}));
          append(*cache, 11);
          append(*cache, 12);
          EXPECT_EQ(held(*cache), Numbers({10, 11, 12}));
        }
      }
    }
  }
}

// One of several rows, that all read one prefix: likewise.
TEST(Fork, ExpandedRowsCropToNothing) {
  Counted source;
  feed(source.cache, 2);
  source.cache.expand(2);
  append(source.cache, 2);
  const std::unique_ptr<Cache> first = source.cache.fork();
  append(source.cache, 3);
  const std::unique_ptr<Cache> second = source.cache.fork();
  source.cache.crop(-4);
  append(source.cache, 7);
  append(source.cache, 8);
  EXPECT_EQ(held(source.cache, 1), Numbers({1007, 1008}));
  EXPECT_EQ(held(*second, 1), Numbers({0, 1, 1002, 1003}));
}

TEST(Fork, AttentionReadsPrefixAndTailWhereTheyLie) {
  Counted source;
  feed(source.cache, 5);
  const std::unique_ptr<Cache> fork = source.cache.fork();
  const View first = append(*fork, 70);
  const View second = append(source.cache, 50);
  ASSERT_EQ(first.segments.size(), 2U);
  EXPECT_EQ(numbers(first.segments[0].keys), from_to(0, 4));
  EXPECT_EQ(numbers(first.segments[1].keys), Numbers({70}));
  EXPECT_EQ(first.segments[1].first, 5);
  EXPECT_EQ(first.segments[0].keys.const_data_ptr(), second.segments[0].keys.const_data_ptr());
}

// A cache that is forked at every token still reads few segments.
TEST(Fork, OfForksJoinsSmallParts) {
  for (const LayerSpec& layer : {kFull, window(30)}) {
    std::unique_ptr<Cache> cache = std::make_unique<DynamicCache>(std::vector<LayerSpec>{layer});
    for (std::int64_t i = 0; i < 100; ++i) {
      EXPECT_LE(append(*cache, i).segments.size(), 9U);
      cache = cache->fork();
    }
    EXPECT_EQ(held(*cache), from_to(layer.window > 0 ? 71 : 0, 99));
  }
}

// What a window has passed is let go, also where it is shared.
TEST(Fork, WindowsLetSharedTokensGo) {
  Counted source(window(8));
  feed(source.cache, 1000);
  std::unique_ptr<Cache> fork = source.cache.fork();
  source.cache.reset();
  for (std::int64_t i = 0; i < 6; ++i) append(*fork, i);
  EXPECT_EQ(held(*fork), Numbers({999, 0, 1, 2, 3, 4, 5}));
  append(*fork, 6);
  EXPECT_EQ(held(*fork), from_to(0, 6));
  EXPECT_EQ(source.memory->live_bytes(), fork->allocated_bytes());
  EXPECT_EQ(fork->allocated_bytes(), 2 * 16 * 4);  // one small tail
}

TEST(Fork, KeepsRoomAndRecording) {
  Counted source(window(4));
  source.cache.activate_past_recording();
  source.cache.reserve(40);
  feed(source.cache, 10);
  const std::unique_ptr<Cache> fork = source.cache.fork();
  append(*fork, 10);
  const std::int64_t allocations = source.memory->allocations();
  for (std::int64_t i = 11; i < 40; ++i) append(*fork, i);
  EXPECT_EQ(source.memory->allocations(), allocations);
  ASSERT_TRUE(fork->can_crop(35));
  fork->crop(-35);
  EXPECT_EQ(held(*fork), from_to(2, 4));
}

// Rows that two caches share are replaced by a copy, once; from then on they are reordered in
// place.
TEST(Fork, ReorderNeverWritesWhatTheOtherReads) {
  Counted source;
  const at::Tensor states = counting(0, 3, {2, 1, 1});
  source.cache.append(states, states, 0);
  const std::unique_ptr<Cache> fork = source.cache.fork();
  append(*fork, 3);
  const at::Tensor swapped = at::tensor({1, 0}, at::kLong);
  fork->reorder_cache(swapped);
  EXPECT_EQ(held(*fork, 0), from_to(1000, 1003));
  EXPECT_EQ(held(*fork, 1), from_to(0, 3));
  EXPECT_EQ(held(source.cache, 0), from_to(0, 2));
  const std::int64_t allocated = fork->allocated_bytes();
  const std::int64_t allocations = source.memory->allocations();
  fork->reorder_cache(swapped);
  EXPECT_EQ(source.memory->allocations(), allocations + 1);  // the scratch
  EXPECT_EQ(fork->allocated_bytes(), allocated);
  EXPECT_EQ(held(*fork, 0), from_to(0, 3));
  // A fork of it shares its rows again.
  const std::unique_ptr<Cache> second = fork->fork();
  second->reorder_cache(swapped);
  EXPECT_EQ(held(*second, 0), from_to(1000, 1003));
  EXPECT_EQ(held(*fork, 0), from_to(0, 3));
}

TEST(Fork, DtypeAndRowsStayKnown) {
  Counted source;
  feed(source.cache, 4);
  const std::unique_ptr<Cache> fork = source.cache.fork();
  const at::Tensor one = counting(4, 1, {1, 1, 1}), two = counting(4, 1, {2, 1, 1});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(fork->append(one.to(at::kHalf), one.to(at::kHalf), 0), ValueError);
    EXPECT_THROW(fork->append(two, two, 0), ValueError);
    fork->crop(-fork->get_seq_length());
  }
}

TEST(Fork, IsRefusedInAStep) {
  Counted source;
  feed(source.cache, 4);
  const Step step = source.cache.begin_step({.tokens = 1, .batch = 1});
  EXPECT_THROW(source.cache.fork(), RuntimeError);
  EXPECT_THROW(source.cache.expand(2), RuntimeError);
}

TEST(Expand, HoldsOnePrefixAndATailARow) {
  Counted cache;
  feed(cache.cache, 100);
  const std::int64_t prefix = cache.cache.nbytes();
  cache.cache.expand(3);
  EXPECT_EQ(cache.cache.batch_size(), 3);
  EXPECT_EQ(cache.cache.nbytes(), prefix);
  const View view = append(cache.cache, 100);
  ASSERT_EQ(view.segments.size(), 2U);
  EXPECT_EQ(view.batch, 3);
  EXPECT_EQ(view.segments[0].keys.size(0), 1);
  EXPECT_EQ(view.segments[1].keys.size(0), 3);
  EXPECT_EQ(cache.cache.nbytes(), prefix + 3 * 2 * 4);
  Numbers third = from_to(0, 99);
  third.push_back(2100);
  EXPECT_EQ(held(cache.cache, 2), third);
  // A copy keeps one prefix too.
  EXPECT_EQ(cache.cache.clone()->nbytes(), cache.cache.nbytes());
}

TEST(Expand, ReorderMovesOnlyTails) {
  Counted cache;
  feed(cache.cache, 1000);
  cache.cache.expand(4);
  const View view = append(cache.cache, 1000);
  const at::Tensor prefix = view.segments[0].keys;
  const auto version = prefix._version();
  const std::int64_t before = cache.memory->live_bytes();
  cache.cache.reorder_cache(at::tensor({3, 3, 0, 1}, at::kLong));
  EXPECT_EQ(cache.memory->live_bytes(), before);
  EXPECT_EQ(prefix._version(), version);
  EXPECT_LE(cache.memory->peak_bytes(), before + 4 * 4);  // the scratch: four rows of one token
  for (const auto& [row, last] : {std::pair(0, 4000), {1, 4000}, {2, 1000}, {3, 2000}}) {
    Numbers right = from_to(0, 999);
    right.push_back(last);
    EXPECT_EQ(held(cache.cache, row), right);
  }
}

TEST(Expand, RowsCanBeChosenAndExpandedAgain) {
  Counted cache;
  feed(cache.cache, 3);
  cache.cache.expand(3);
  append(cache.cache, 3);
  cache.cache.batch_select_indices(at::tensor({2}, at::kLong));
  cache.cache.expand(2);
  append(cache.cache, 4);
  EXPECT_EQ(held(cache.cache, 0), Numbers({0, 1, 2, 2003, 4}));
  EXPECT_EQ(held(cache.cache, 1), Numbers({0, 1, 2, 2003, 1004}));
  cache.cache.crop(-4);
  append(cache.cache, 5);
  EXPECT_EQ(held(cache.cache, 1), Numbers({0, 1005}));
  cache.cache.batch_repeat_interleave(2);
  EXPECT_EQ(held(cache.cache, 1), Numbers({0, 5}));
  EXPECT_EQ(held(cache.cache, 3), Numbers({0, 1005}));
}

TEST(Expand, LeavesACacheThatSharesThePrefixAlone) {
  Counted source;
  feed(source.cache, 10);
  const std::unique_ptr<Cache> fork = source.cache.fork();
  fork->expand(2);
  append(*fork, 10);
  EXPECT_EQ(source.cache.batch_size(), 1);
  EXPECT_EQ(feed(source.cache, 1), from_to(0, 10));
}

TEST(Expand, RefusesWhatItCannotDo) {
  Counted cache;
  cache.cache.expand(5);  // nothing to expand
  EXPECT_EQ(cache.cache.batch_size(), 0);
  feed(cache.cache, 2);
  EXPECT_THAT(refusal<ValueError>([&] { cache.cache.expand(0); }), HasSubstr("not 0"));
  cache.cache.expand(2);
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.cache.expand(3); }),
              HasSubstr("batch_repeat_interleave"));
}

// Attention over a prefix that all rows share equals attention over repeated rows, masks included.
TEST(Expand, AttentionEqualsThatOverRepeatedRows) {
  for (const LayerSpec& layer : {kFull, window(6)}) {
    const auto prefix = [&] {
      auto cache = std::make_unique<DynamicCache>(std::vector<LayerSpec>{layer});
      at::manual_seed(3);
      cache->append(at::randn({1, 2, 9, 8}), at::randn({1, 2, 9, 8}), 0);
      return cache;
    };
    const auto shared = prefix(), repeated = prefix();
    shared->expand(3);
    repeated->batch_repeat_interleave(3);
    for (const std::int64_t tokens : {1, 3, 1}) {
      const at::Tensor query = at::randn({3, 4, tokens, 8});
      const at::Tensor keys = at::randn({3, 2, tokens, 8}), values = at::randn({3, 2, tokens, 8});
      const std::int64_t seen = shared->get_seq_length();
      const auto attend = [&](Cache& cache) {
        const View view = cache.append(keys, values, 0);
        return attention(query, view,
                         make_mask({.visible = view.visible, .seen = seen, .tokens = tokens}));
      };
      EXPECT_CLOSE(attend(*shared), attend(*repeated), 1e-6);
    }
  }
}

}  // namespace
}  // namespace kvcache
