// What is asked of a cache as a whole: joining and splitting rows, marks, reuse of a prefix.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::counting;
using ::testing::HasSubstr;
using testing::numbers;
using testing::refusal;
using testing::stored;
using testing::window;
using Numbers = std::vector<std::int64_t>;

const LayerSpec kFull{};

// int64 [batch, tokens]: 100, 101, ... in every row.
at::Tensor text(std::int64_t tokens, std::int64_t batch = 1, std::int64_t first = 0) {
  return at::arange(100 + first, 100 + first + tokens, at::kLong)
      .expand({batch, tokens})
      .contiguous();
}

// Feeds counting keys and the next ids of text() to all layers.
void feed(Cache& cache, std::int64_t tokens, std::int64_t batch = 1) {
  auto& layered = static_cast<LayeredCache&>(cache);
  const std::int64_t seen = cache.history().seen();
  Step step =
      cache.begin_step({.tokens = tokens, .batch = batch, .ids = text(tokens, batch, seen)});
  const at::Tensor states = counting(seen, tokens, {batch, 1, 1});
  for (std::int64_t i = 0; i < layered.layer_count(); ++i) {
    if (const auto& layer = layered.layer(i); layer.spec().type != "blocks") {
      step.append(i, states, states);
    }
  }
  step.commit();
}

Numbers held(Cache& cache, std::size_t layer, std::int64_t row = 0) {
  return numbers(stored(static_cast<LayeredCache&>(cache))[layer].keys, row);
}

// Caches of a window of 8 and a full layer: growing, and of 24 tokens at most with rings.
struct Kind {
  const char* name;
  std::int64_t slack;  // of the rings; -1: growing
};

std::unique_ptr<LayeredCache> make(const Kind& kind) {
  const std::vector<LayerSpec> layers{window(8), kFull};
  if (kind.slack < 0) return std::make_unique<DynamicCache>(layers);
  return std::make_unique<StaticCache>(
      layers, StaticCacheOptions{.max_cache_len = 24, .record_slack = kind.slack});
}

class Concatenation : public ::testing::TestWithParam<Kind> {};

// A window of 8 keeps 7 tokens for the next query, which then sees 8.
TEST_P(Concatenation, F71JoiningCachesOfDifferentLengths) {
  const auto a = make(GetParam()), b = make(GetParam());
  feed(*a, 20);
  feed(*b, 3);
  const std::unique_ptr<Cache> joined = a->concatenate({b.get()});
  EXPECT_TRUE(typeid(*joined) == typeid(*a));
  EXPECT_EQ(joined->batch_size(), 2);
  EXPECT_EQ(joined->get_seq_length(0), 20);
  EXPECT_EQ(joined->get_mask_sizes(1, 0), std::pair(std::int64_t{8}, std::int64_t{13}));
  EXPECT_EQ(joined->capacity(), a->capacity());
  EXPECT_EQ(held(*joined, 0, 0), Numbers({13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(held(*joined, 0, 1), Numbers({0, 0, 0, 0, 0, 1, 2}));
  EXPECT_EQ(held(*joined, 1, 1).size(), 20U);
  const at::Tensor valid = joined->history().valid();
  EXPECT_TRUE(valid[0].all().item<bool>());
  EXPECT_EQ(valid[1].sum().item<std::int64_t>(), 3);
  EXPECT_TRUE(valid[1].narrow(0, 17, 3).all().item<bool>());
  EXPECT_TRUE(at::equal(joined->history().ids()[1].narrow(0, 17, 3), text(3)[0]));
  const at::Tensor positions = joined->begin_step({.tokens = 1, .batch = 2}).positions();
  EXPECT_EQ(positions[0].item<std::int64_t>(), 20);
  EXPECT_EQ(positions[1].item<std::int64_t>(), 3);
  EXPECT_EQ(held(*a, 0), Numbers({13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(held(*b, 0), Numbers({0, 1, 2}));
  feed(*joined, 1, 2);
  EXPECT_EQ(held(*joined, 0, 1), Numbers({0, 0, 0, 0, 1, 2, 1020}));
  feed(*joined, 3, 2);
  EXPECT_EQ(held(*joined, 0, 1), Numbers({0, 1, 2, 1020, 1021, 1022, 1023}));
}

// Joined rows hold what all of them have recorded.
TEST_P(Concatenation, F71RecordedTokensCanBeTakenBackAfterwards) {
  const auto a = make(GetParam()), b = make(GetParam());
  for (const auto& cache : {a.get(), b.get()}) {
    cache->activate_past_recording(3);
    feed(*cache, 9);
    feed(*cache, cache == a.get() ? 11 : 3);
  }
  const std::unique_ptr<Cache> joined = b->concatenate({a.get()});
  EXPECT_EQ(held(*joined, 0, 0), Numbers({2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(held(*joined, 0, 1), Numbers({10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  EXPECT_FALSE(joined->can_crop(4));
  joined->crop(-3);
  EXPECT_EQ(held(*joined, 0, 0), Numbers({2, 3, 4, 5, 6, 7, 8}));
  feed(*joined, 2, 2);
  EXPECT_EQ(held(*joined, 0, 0), Numbers({2, 3, 4, 5, 6, 7, 8, 17, 18}));
  EXPECT_EQ(held(*joined, 0, 1), Numbers({10, 11, 12, 13, 14, 15, 16, 1017, 1018}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Concatenation,
                         ::testing::Values(Kind{"Dynamic", -1}, Kind{"Static", 0},
                                           Kind{"StaticSlack", 3}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST(JoinedRows, OfSplitRowsAreTheWhole) {
  DynamicCache whole(std::vector<LayerSpec>{kFull, window(4)});
  feed(whole, 9, 5);
  const auto parts = whole.batch_split(2);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0]->batch_size(), 2);
  EXPECT_EQ(parts[2]->batch_size(), 1);
  EXPECT_EQ(held(*parts[1], 1, 1), Numbers({3006, 3007, 3008}));
  const std::unique_ptr<Cache> joined = parts[0]->concatenate({parts[1].get(), parts[2].get()});
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(held(*joined, layer, row), held(whole, layer, row));
    }
  }
  EXPECT_TRUE(at::equal(joined->history().ids(), whole.history().ids()));
  EXPECT_TRUE(joined->history().all_valid());
  EXPECT_THROW(whole.batch_split(0), ValueError);
}

TEST(JoinedRows, OfCachesThatDoNotGoTogetherAreRefused) {
  DynamicCache a(std::vector<LayerSpec>{kFull}), empty(std::vector<LayerSpec>{kFull});
  DynamicCache other(std::vector<LayerSpec>{window(4)}), two(std::vector<LayerSpec>{kFull, kFull});
  DynamicCache wide(std::vector<LayerSpec>{kFull}), half(std::vector<LayerSpec>{kFull});
  feed(a, 3);
  const at::Tensor two_heads = counting(0, 3, {1, 2, 1});
  wide.append(two_heads, two_heads, 0);
  const at::Tensor halves = counting(0, 3, {1, 1, 1}, at::kHalf);
  half.append(halves, halves, 0);
  const auto message = [&](Cache& with) {
    return refusal<ValueError>([&] { a.concatenate({&with}); });
  };
  EXPECT_THAT(message(empty), HasSubstr("cache 1 of 2 has no rows"));
  EXPECT_THAT(message(other), HasSubstr("layer 0"));
  EXPECT_THAT(message(two), HasSubstr("1 layers, but the other has 2"));
  EXPECT_THAT(message(wide), HasSubstr("only rows and tokens may differ"));
  EXPECT_THAT(message(half), HasSubstr("float16"));
  DynamicCache recording(std::vector<LayerSpec>{window(4)}), not_recording({window(4)});
  recording.activate_past_recording();
  feed(recording, 3);
  feed(not_recording, 3);
  EXPECT_THAT(refusal<ValueError>([&] { recording.concatenate({&not_recording}); }),
              HasSubstr("'record'"));
}

TEST(Snapshot, FixedAddressesStay) {
  const std::vector<LayerSpec> layers{kFull, window(4)};
  StaticCache cache(layers, {.max_cache_len = 20});
  feed(cache, 6);
  const Snapshot mark = cache.snapshot();
  const auto before = testing::buffers(cache);
  feed(cache, 9);
  cache.restore(mark);
  const auto after = testing::buffers(cache);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(before[layer].keys.is_same(after[layer].keys));
    EXPECT_TRUE(before[layer].values.is_same(after[layer].values));
  }
  EXPECT_EQ(held(cache, 0), Numbers({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(held(cache, 1), Numbers({3, 4, 5}));
  feed(cache, 1);
  EXPECT_EQ(held(cache, 1), Numbers({4, 5, 6}));
}

TEST(Snapshot, CanBeGoneBackToManyTimes) {
  DynamicCache cache(std::vector<LayerSpec>{kFull, window(4)});
  feed(cache, 6);
  const Snapshot mark = cache.snapshot();
  for (int i = 0; i < 3; ++i) {
    feed(cache, 5 + i);
    if (i == 1) cache.batch_repeat_interleave(2);
    if (i == 2) cache.reset();
    cache.restore(mark);
    EXPECT_EQ(cache.batch_size(), 1);
    EXPECT_EQ(held(cache, 0), Numbers({0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(held(cache, 1), Numbers({3, 4, 5}));
    EXPECT_TRUE(at::equal(cache.history().ids(), text(6)));
  }
  feed(cache, 1);
  EXPECT_EQ(held(cache, 1), Numbers({4, 5, 6}));
  DynamicCache other(std::vector<LayerSpec>{kFull});
  EXPECT_THROW(other.restore(mark), ValueError);
  EXPECT_EQ(other.get_seq_length(), 0);
}

// A kind of the user's that goes back to ends of blocks of 16 tokens, up to some of them.
template <std::int64_t kBlocks>
class BlockLayer final : public StatelessLayer {
 public:
  explicit BlockLayer(LayerSpec spec, const std::shared_ptr<Memory>& = nullptr)
      : StatelessLayer(std::move(spec)) {}

  bool can_crop(std::int64_t tokens) const override {
    const std::int64_t left = seen() - tokens;
    return tokens == 0 || (left >= 0 && left % 16 == 0 && left <= 16 * kBlocks);
  }
  std::int64_t reusable_prefix(std::int64_t length) const override {
    return length == seen() ? length : std::min(length / 16, kBlocks) * 16;
  }
  std::unique_ptr<Layer> clone() const override { return std::make_unique<BlockLayer>(spec()); }
};

// Whether what can_reuse says is what crop then does.
void expect_reuse(Cache& cache, const at::Tensor& ids, std::int64_t expected) {
  const std::int64_t seen = cache.get_seq_length();
  EXPECT_EQ(cache.can_reuse(ids), expected);
  const std::int64_t common = cache.common_prefix(ids);
  for (std::int64_t keep = expected + 1; keep <= common; ++keep) {
    EXPECT_FALSE(cache.can_crop(seen - keep)) << keep;
  }
  if (expected == 0) return;
  ASSERT_TRUE(cache.can_crop(seen - expected));
  cache.crop(expected - seen);
  EXPECT_EQ(cache.get_seq_length(), expected);
}

TEST(Reuse, F72TheLeastOverAllLayers) {
  for (const bool swapped : {false, true}) {
    LayerRegistry layers = dynamic_layers();
    layers.add("blocks",
               [](const LayerSpec& spec, const std::shared_ptr<Memory>&) -> std::unique_ptr<Layer> {
                 if (spec.states == 3) return std::make_unique<BlockLayer<3>>(spec);
                 return std::make_unique<BlockLayer<4>>(spec);
               });
    const LayerSpec three{.type = "blocks", .states = 3}, four{.type = "blocks", .states = 4};
    DynamicCache cache({kFull, swapped ? four : three, swapped ? three : four},
                       {.layers = std::move(layers)});
    feed(cache, 80);
    expect_reuse(cache, text(70), 48);
  }
}

// A window is no limit until it has moved; of several the smallest moves first.
TEST(Reuse, F72WindowsLimitOnceTheSmallestHasMoved) {
  const std::vector<LayerSpec> layers{kFull, window(8), window(4)};
  for (std::int64_t seen = 1; seen <= 12; ++seen) {
    for (std::int64_t same = 0; same <= seen; ++same) {
      DynamicCache cache(layers);
      feed(cache, seen);
      at::Tensor ids = text(seen + 2);
      ids.narrow(1, same, seen + 2 - same).add_(50);
      expect_reuse(cache, ids, seen <= 3 || same == seen ? same : 0);
    }
  }
  DynamicCache recording(layers);
  recording.activate_past_recording();
  feed(recording, 20);
  expect_reuse(recording, text(11), 11);
}

TEST(Reuse, F70APrefixThatAWindowHasLostIsRefusedInAllLayers) {
  DynamicCache cache(std::vector<LayerSpec>{kFull, window(8)});
  feed(cache, 20);
  EXPECT_FALSE(cache.can_crop(15));
  EXPECT_THROW(cache.crop(-15), RuntimeError);
  EXPECT_EQ(cache.get_seq_length(0), 20);
  EXPECT_EQ(cache.get_seq_length(1), 20);
  expect_reuse(cache, text(5), 0);
}

TEST(Reuse, NeedsKnownTokensAndTextsOfTwoDimensions) {
  DynamicCache cache(std::vector<LayerSpec>{kFull});
  feed(cache, 4);
  EXPECT_EQ(cache.common_prefix(text(9)), 4);
  EXPECT_EQ(cache.common_prefix(text(9).to(at::kInt)), 4);
  EXPECT_EQ(cache.common_prefix(text(9, 2)), 0);
  EXPECT_THROW(cache.common_prefix(text(9)[0]), ValueError);
  EXPECT_THROW(cache.common_prefix(text(9), text(9).eq(100).narrow(1, 0, 3)), ValueError);
  const at::Tensor padded = text(9).ne(100);  // the first is padding in the text alone
  EXPECT_EQ(cache.common_prefix(text(9), padded), 0);
  const at::Tensor states = counting(4, 1, {1, 1, 1});
  cache.append(states, states, 0);
  EXPECT_THROW(cache.can_reuse(text(9)), RuntimeError);
}

}  // namespace
}  // namespace kvcache
