#include "kvcache/placement/offload_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const LayerSpec kFull{};
const LayerSpec kSliding{.type = std::string(kSlidingAttention), .window = 4};
const LayerSpec kLinear{.type = std::string(kLinearAttention)};

TEST(OffloadPlan, F68_PrefetchesOnlyLayersThatAreOffloaded) {
  const OffloadPlan plan({kFull, kLinear, kLinear, kFull});
  EXPECT_THAT(plan.to_prefetch(0), ElementsAre(3));
  EXPECT_THAT(plan.to_prefetch(1), ElementsAre(3));
  EXPECT_THAT(plan.to_prefetch(2), ElementsAre(3));
  EXPECT_THAT(plan.to_prefetch(3), ElementsAre(0));  // around to the next step's first
  EXPECT_FALSE(plan.offloaded(1));
}

TEST(OffloadPlan, F68_WithoutATargetThereIsNothingToDo) {
  const OffloadPlan sliding({kSliding, kSliding}, {.only_non_sliding = true});
  for (const std::int64_t layer : {0, 1}) {
    EXPECT_FALSE(sliding.offloaded(layer));
    EXPECT_THAT(sliding.to_prefetch(layer), IsEmpty());
    EXPECT_THAT(sliding.on_device(layer), IsEmpty());
  }
  const OffloadPlan linear({kLinear, kLinear});
  EXPECT_THAT(linear.on_device(0), IsEmpty());
}

TEST(OffloadPlan, OneOffloadedLayerIsItsOwnSuccessorAndNeedsNoPrefetch) {
  const OffloadPlan plan({kLinear, kFull, kLinear});
  EXPECT_THAT(plan.to_prefetch(0), ElementsAre(1));
  EXPECT_THAT(plan.to_prefetch(1), IsEmpty());
  EXPECT_THAT(plan.on_device(1), ElementsAre(1));
  EXPECT_THAT(plan.to_prefetch(2), ElementsAre(1));
}

TEST(OffloadPlan, LooksAheadAsFarAsItIsTold) {
  const std::vector<LayerSpec> layers{kFull, kSliding, kLinear, kFull, kFull};
  EXPECT_THAT(OffloadPlan(layers, {.lookahead = 2}).on_device(3), ElementsAre(3, 4, 0));
  EXPECT_THAT(OffloadPlan(layers, {.lookahead = 9}).on_device(0), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(OffloadPlan(layers, {.only_non_sliding = true, .lookahead = 2}).on_device(4),
              ElementsAre(4, 0, 3));
  EXPECT_THROW(OffloadPlan(layers, {.lookahead = 0}), ValueError);
}

}  // namespace
}  // namespace kvcache
