// What a cache of any kind says it will allocate.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/contract/subject.h"

namespace kvcache::testing {
namespace {

// Whether the layers say how large what they will hold is.
bool is_sized(const CacheKind& kind) {
  return std::all_of(kind.layers.begin(), kind.layers.end(), [](const LayerSpec& spec) {
    return (!has_keys(spec) || spec.kv_heads > 0) && (!has_states(spec) || spec.state_sizes);
  });
}

class PlannedBytes : public ::testing::TestWithParam<Setting> {};

TEST_P(PlannedBytes, AreThoseAllocatedOrRefused) {
  const Setting& setting = GetParam();
  for (const std::int64_t tokens : {1, 7, 20}) {
    Subject subject(setting, std::uint64_t(tokens));
    Cache& cache = *subject.cache;
    PlanInput input{.batch = setting.batch, .tokens = tokens, .dtype = setting.dtype};
    if (setting.kind.encoder) input.cross_tokens = 3;
    if (!is_sized(setting.kind)) {
      EXPECT_THROW(cache.plan(input), ValueError);
      continue;
    }
    const CachePlan plan = cache.plan(input);
    EXPECT_EQ(subject.memory->allocations(), 0);
    EXPECT_EQ(std::int64_t(plan.layers.size()), subject.model.layers());
    reserve(subject, tokens);
    take_step(subject, subject.plan(tokens));
    EXPECT_EQ(plan.total, cache.allocated_bytes()) << tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlannedBytes, ::testing::ValuesIn(settings()),
                         [](const auto& setting) { return name_of(setting.param); });

}  // namespace
}  // namespace kvcache::testing
