// What a cache says it will allocate is what it then allocates.
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/counting_states.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::counting;
using testing::FailingMemory;
using testing::feed_rows;
using ::testing::HasSubstr;
using testing::kFull;
using testing::kLinear;
using testing::kNothing;
using testing::kTwoStates;
using testing::Numbers;
using testing::refusal;
using testing::window;

LayerSpec sized(LayerSpec spec) {
  spec.kv_heads = 2;
  spec.key_dim = 6;
  spec.value_dim = 4;
  return spec;
}

// Room that was reserved is all that is allocated.
TEST(Plan, IsWhatIsAllocated) {
  for (const std::int64_t tokens : {1, 10, 50, 300}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto memory = std::make_shared<FailingMemory>();
      DynamicCache cache({sized(kFull), sized(window(16)), kNothing}, {.memory = memory});
      const CachePlan plan = cache.plan({.batch = 3, .tokens = tokens, .dtype = dtype});
      EXPECT_EQ(memory->allocations(), 0);
      cache.reserve(tokens);
      const at::Tensor keys = counting(0, 1, {3, 2, 6}, dtype);
      const at::Tensor values = counting(0, 1, {3, 2, 4}, dtype);
      for (std::int64_t i = 0; i < tokens; ++i) {
        cache.append(keys, values, 0);
        cache.append(keys, values, 1);
      }
      EXPECT_EQ(plan.total, cache.allocated_bytes()) << tokens;
      const std::int64_t bytes = 3 * 2 * (6 + 4) * (dtype == at::kFloat ? 4 : 2);
      EXPECT_EQ(plan.layers[0], bytes * std::max<std::int64_t>(tokens, 16));
      EXPECT_EQ(plan.layers[1], bytes * std::clamp<std::int64_t>(tokens, 16, 32));
      EXPECT_EQ(plan.layers[2], 0);
    }
  }
}

// Fixed sizes are what they are, whatever is fed.
TEST(Plan, OfFixedStorageIsWhatIsAllocated) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache cache({sized(kFull), sized(window(16))}, {.max_cache_len = 40, .memory = memory});
  const CachePlan plan = cache.plan({.batch = 3, .tokens = 40});
  EXPECT_EQ(memory->allocations(), 0);
  cache.append(counting(0, 2, {3, 2, 6}), counting(0, 2, {3, 2, 4}), 0);
  cache.append(counting(0, 2, {3, 2, 6}), counting(0, 2, {3, 2, 4}), 1);
  EXPECT_EQ(plan.total, cache.allocated_bytes());
  EXPECT_EQ(plan.layers, Numbers({3 * 2 * (6 + 4) * 4 * 40, 3 * 2 * (6 + 4) * 4 * 16}));
  EXPECT_THROW(cache.plan({.tokens = 41}), ValueError);
}

TEST(Plan, RefusesWhatItCannotKnow) {
  DynamicCache lazy, unsized(std::vector<LayerSpec>{kFull});
  DynamicCache cache(std::vector<LayerSpec>{sized(kFull)});
  EXPECT_THAT(refusal<ValueError>([&] { lazy.plan({.tokens = 4}); }), HasSubstr("config"));
  EXPECT_THAT(refusal<ValueError>([&] { unsized.plan({.tokens = 4}); }), HasSubstr("layer 0"));
  EXPECT_THROW(cache.plan({.tokens = 0}), ValueError);
  EXPECT_THROW(cache.plan({.batch = 0, .tokens = 1}), ValueError);
}

// As the stand-in for a model feeds it, all kinds of states included.
LayerSpec fed(LayerSpec spec) {
  spec.kv_heads = spec.key_dim = spec.value_dim = 1;
  StateSizes sizes;
  for (std::int64_t i = 0; i < spec.states; ++i) {
    sizes.convolutions.push_back({.channels = 2, .taps = testing::taps_of(i)});
    sizes.recurrences.push_back({.shape = {1}});
  }
  if (has_states(spec)) spec.state_sizes = sizes;
  return spec;
}

struct Made {
  std::string kind;
  std::shared_ptr<FailingMemory> memory;
  std::unique_ptr<LayeredCache> cache;
};

// Caches of every kind that takes these layers, with room for `tokens` tokens.
std::vector<Made> caches_of(const std::vector<LayerSpec>& layers, std::int64_t tokens) {
  std::vector<Made> made;
  const auto add = [&](const char* kind, const auto& make) {
    const auto memory = std::make_shared<FailingMemory>();
    made.push_back({kind, memory, make(memory)});
  };
  add("dynamic", [&](const auto& memory) {
    return std::make_unique<DynamicCache>(layers, DynamicCacheOptions{.memory = memory});
  });
  add("static", [&](const auto& memory) {
    return std::make_unique<StaticCache>(
        layers, StaticCacheOptions{.max_cache_len = tokens, .memory = memory});
  });
  if (std::all_of(layers.begin(), layers.end(), [](const LayerSpec& spec) {
        return spec.type == kLinearAttention || spec.type == kDummy;
      })) {
    add("mamba", [&](const auto& memory) {
      return std::make_unique<MambaCache>(layers, MambaCacheOptions{.memory = memory});
    });
  }
  return made;
}

// `rows` equal rows of 1, 2, ...
std::vector<Numbers> rows_of(std::int64_t rows, std::int64_t tokens) {
  Numbers row(static_cast<std::size_t>(tokens));
  std::iota(row.begin(), row.end(), 1);
  return std::vector<Numbers>(static_cast<std::size_t>(rows), row);
}

class PlanOfStates : public ::testing::TestWithParam<std::int64_t> {
 protected:
  // `record`: tokens; 0: none. `piece`: tokens of a step.
  void expect_exact(const PlanInput& input, std::int64_t record, std::int64_t piece) {
    for (std::vector<LayerSpec> layers : testing::kMixes) {
      std::transform(layers.begin(), layers.end(), layers.begin(), fed);
      for (auto& [kind, memory, cache] : caches_of(layers, input.tokens)) {
        SCOPED_TRACE(c10::str(kind, " of ", layers.front().type, ", ", input.batch, " x ",
                              input.tokens, ", recording ", record, ", pieces of ", piece));
        if (record > 0) cache->activate_past_recording(record);
        const CachePlan plan = cache->plan(input);
        EXPECT_EQ(memory->allocations(), 0);
        EXPECT_EQ(plan.layers.size(), layers.size());
        EXPECT_EQ(std::accumulate(plan.layers.begin(), plan.layers.end(), std::int64_t{0}),
                  plan.total);
        cache->reserve(input.tokens);
        for (std::int64_t at = 0; at < input.tokens; at += piece) {
          feed_rows(*cache, rows_of(input.batch, std::min(piece, input.tokens - at)));
        }
        EXPECT_EQ(plan.total, cache->allocated_bytes());
        EXPECT_EQ(plan.total, cache->plan(input).total);
      }
    }
  }
};

TEST_P(PlanOfStates, IsWhatIsAllocated) {
  for (const std::int64_t tokens : {1, 7, 40}) {
    const PlanInput input{.batch = GetParam(), .tokens = tokens};
    for (const std::int64_t piece : {1, 3, 40}) expect_exact(input, 0, piece);
    for (const std::int64_t record : {1, 3, 16}) expect_exact(input, record, tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, PlanOfStates, ::testing::Values(1, 3));

// Of a recurrence there are two states, used in turn, or one more than are recorded; of a
// convolution twice the inputs kept and one to come.
TEST(Plan, CountsStates) {
  MambaCache cache({fed(kTwoStates)}), recording({fed(kTwoStates)});
  const std::int64_t convolutions = 2 * 4 * (2 * (2 + 1) + 2 * (3 + 1)), recurrences = 2 * 2 * 4;
  EXPECT_EQ(cache.plan({.tokens = 100}).total, convolutions + recurrences);
  EXPECT_EQ(cache.plan({.batch = 5, .tokens = 1}).total, 5 * (convolutions + recurrences));
  EXPECT_EQ(cache.plan({.tokens = 1, .dtype = at::kHalf}).total, convolutions / 2 + recurrences);
  recording.activate_past_recording(10);
  EXPECT_EQ(recording.plan({.tokens = 100}).total,
            convolutions + 2 * 2 * 4 * 2 * 10 + 2 * 4 * (10 + 2));
  // A recurrence may keep the model's dtype, and a layer need not use all of its states.
  const LayerSpec own{.type = std::string(kLinearAttention),
                      .states = 2,
                      .state_sizes = StateSizes{.recurrences = {{{3, 5}, std::nullopt}}}};
  EXPECT_EQ(MambaCache({own}).plan({.tokens = 1, .dtype = at::kHalf}).total, 2 * 3 * 5 * 2);
}

// Buffers made ahead are those that were planned; states come with the first step.
TEST(Plan, IsWhatEarlyInitializationAllocates) {
  const auto memory = std::make_shared<FailingMemory>();
  StaticCache cache({sized(kFull), sized(window(16)), fed(testing::kBoth)},
                    {.max_cache_len = 40, .memory = memory});
  const CachePlan plan = cache.plan({.batch = 3, .tokens = 40, .dtype = at::kBFloat16});
  EXPECT_EQ(memory->allocations(), 0);
  cache.early_initialization({.batch = 3, .dtype = at::kBFloat16});
  const std::int64_t states =
      DynamicCache({fed(kLinear)}).plan({.batch = 3, .tokens = 40, .dtype = at::kBFloat16}).total;
  EXPECT_EQ(cache.allocated_bytes(), plan.total - states);
  EXPECT_EQ(cache.plan({.batch = 3, .tokens = 40, .dtype = at::kBFloat16}).total, plan.total);
}

TEST(Plan, RefusesMoreBytesThanThereCanBe) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  LayerSpec large = kLinear;
  large.state_sizes = StateSizes{.recurrences = {{.shape = {kMany, kMany}}}};
  DynamicCache attention({sized(kFull)}), states({large});
  for (Cache* cache : {&attention, &states}) {
    EXPECT_THAT(refusal<ValueError>([&] { cache->plan({.batch = kMany, .tokens = kMany}); }),
                HasSubstr("larger than 281474976710656 bytes"));
  }
}

TEST(Plan, OfAnEncoderAndADecoderCountsBoth) {
  const auto memory = std::make_shared<FailingMemory>();
  EncoderDecoderCache cache(
      DynamicCache({sized(kFull), sized(window(16))}, {.memory = memory}),
      StaticCache({sized(kFull), sized(kFull)}, {.max_cache_len = 30, .memory = memory}));
  const PlanInput input{.batch = 6, .tokens = 20, .cross_tokens = 25, .cross_batch = 3};
  const CachePlan plan = cache.plan(input);
  EXPECT_EQ(memory->allocations(), 0);
  const std::int64_t bytes = 2 * (6 + 4) * 4;
  EXPECT_EQ(plan.layers, Numbers({6 * 20 * bytes, 6 * 20 * bytes, 3 * 30 * bytes, 3 * 30 * bytes}));
  EXPECT_EQ(plan.total, 2 * (6 * 20 + 3 * 30) * bytes);
  const auto refused = [&](PlanInput other) {
    return refusal<ValueError>([&] { cache.plan(other); });
  };
  EXPECT_THAT(refused({.batch = 6, .tokens = 20}), HasSubstr("0 tokens"));
  EXPECT_THAT(refused({.batch = 6, .tokens = 20, .cross_tokens = 31}), HasSubstr("30 at most"));
  EXPECT_THAT(refused({.batch = 6, .tokens = 20, .cross_tokens = 25, .cross_batch = 4}),
              HasSubstr("4 rows for a decoder of 6"));
  EXPECT_THAT(refused({.batch = 6, .tokens = 0, .cross_tokens = 25}), HasSubstr("not 0"));
  EXPECT_THAT(refusal<ValueError>([&] { cache.self_attention_cache().plan(input); }),
              HasSubstr("EncoderDecoderCache"));
}

}  // namespace
}  // namespace kvcache
