// What steps refuse and how they say so, and the order in which placements are called.

#include "kvcache/cache/step.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/uncached.h"
#include "tests/support/counting.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::counting;
using ::testing::ElementsAre;
using testing::feed;
using ::testing::HasSubstr;
using testing::refusal;

const LayerSpec kFull{};
const LayerSpec kWindow4{.type = std::string(kSlidingAttention), .window = 4};

void run(Cache& cache, StepInput input, std::int64_t layers) {
  Step step = cache.begin_step(input);
  const at::Tensor states = counting(step.seen(), input.tokens, {input.batch, 1, 1});
  for (std::int64_t layer = 0; layer < layers; ++layer) step.append(layer, states, states);
  step.commit();
}

TEST(Step, MessagesNameLayerValueAndLimit) {
  DynamicCache cache({kFull, kWindow4});
  run(cache, {.tokens = 6, .batch = 2}, 2);
  EXPECT_THAT(refusal<ValueError>([&] { cache.begin_step({.tokens = 1, .batch = 3}); }),
              AllOf(HasSubstr("batch 3"), HasSubstr("batch 2")));
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.crop(-1); }),
              AllOf(HasSubstr("layer 1"), HasSubstr("window 4"), HasSubstr("length 6"),
                    HasSubstr("activate_past_recording")));
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.crop(-7); }),
              AllOf(HasSubstr("crop(-7)"), HasSubstr("6")));
  EXPECT_THAT(refusal<ValueError>([&] { cache.crop(2); }),
              AllOf(HasSubstr("crop(2)"), HasSubstr("crop(-2)")));
  EXPECT_THAT(refusal<ValueError>([&] { cache.get_seq_length(2); }),
              AllOf(HasSubstr("layer 2"), HasSubstr("0 to 1")));

  Step step = cache.begin_step({.tokens = 1, .batch = 2});
  const at::Tensor good = counting(6, 1, {2, 1, 1});
  EXPECT_THAT(refusal<ValueError>([&] {
                step.append(0, counting(6, 2, {2, 1, 1}), good);
              }),
              AllOf(HasSubstr("layer 0"), HasSubstr("[2, 1, 2, 1]"), HasSubstr("1 tokens")));
  EXPECT_THAT(refusal<ValueError>([&] {
                step.append(0, good, counting(6, 1, {2, 1, 3}));
              }),
              AllOf(HasSubstr("layer 0: values"), HasSubstr("size 1")));
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.begin_step({.tokens = 1, .batch = 2}); }),
              HasSubstr("a step is open"));
  step.append(1, good, good);
  EXPECT_THAT(refusal<RuntimeError>([&] { step.append(1, good, good); }), HasSubstr("layer 1"));
  EXPECT_THAT(refusal<RuntimeError>([&] { step.append(0, good, good); }),
              AllOf(HasSubstr("layer 1"), HasSubstr("layer 0"), HasSubstr("in order")));
  EXPECT_THAT(refusal<RuntimeError>([&] { step.commit(); }), HasSubstr("layer 0 of 2"));
}

TEST(Step, TensorsMustFit) {
  DynamicCache cache({kFull});
  run(cache, {.tokens = 3, .batch = 2}, 1);
  const auto refused = [&](StepInput input) {
    return refusal<ValueError>([&] { cache.begin_step(input); });
  };
  const auto ones = [](std::int64_t rows, std::int64_t columns) {
    return at::zeros({rows, columns}, at::kLong);
  };
  EXPECT_THAT(refused({.tokens = 2, .batch = 2, .ids = ones(2, 3)}), HasSubstr("int64 [2, 2]"));
  EXPECT_THAT(refused({.tokens = 2, .batch = 2, .ids = ones(2, 2).to(at::kInt)}),
              HasSubstr("int64 [2, 2]"));
  EXPECT_THAT(refused({.tokens = 2, .batch = 2, .valid = ones(2, 4)}), HasSubstr("[2, 5]"));
  EXPECT_THAT(refused({.tokens = 2, .batch = 2, .valid = ones(1, 2)}), HasSubstr("1 rows"));
  EXPECT_EQ(cache.history().seen(), 3);
}

// Positions and columns follow the mask that a step brings, also where it covers the past.
TEST(Step, MaskOverThePast) {
  DynamicCache cache({kFull});
  feed(cache, 4);  // tokens of which nothing is known
  at::Tensor whole = at::ones({1, 6}, at::kLong);
  whole.narrow(1, 0, 2).zero_();
  Step step = cache.begin_step({.tokens = 2, .batch = 1, .valid = whole});
  EXPECT_EQ(step.positions()[0][0].item<std::int64_t>(), 2);
  EXPECT_EQ(step.positions()[0][1].item<std::int64_t>(), 3);
  EXPECT_TRUE(at::equal(*step.valid(), whole.to(at::kBool)));
  const at::Tensor states = counting(4, 2, {1, 1, 1});
  step.append(0, states, states);
  step.commit();
  Step next = cache.begin_step({.tokens = 1, .batch = 1});
  EXPECT_EQ(next.positions().item<std::int64_t>(), 4);
  EXPECT_EQ(next.valid()->size(1), 7);
}

TEST(Step, NoMaskWhereAllTokensAreReal) {
  DynamicCache cache({kFull});
  Step step = cache.begin_step({.tokens = 2, .batch = 2, .valid = at::ones({2, 2}, at::kLong)});
  EXPECT_EQ(step.valid(), std::nullopt);
}

TEST(Step, MakesNoLayerThatLacksThePast) {
  DynamicCache cache;
  run(cache, {.tokens = 3, .batch = 1}, 2);
  Step step = cache.begin_step({.tokens = 1, .batch = 1});
  const at::Tensor states = counting(3, 1, {1, 1, 1});
  for (const std::int64_t layer : {0, 1}) step.append(layer, states, states);
  EXPECT_THAT(refusal<ValueError>([&] { step.append(2, states, states); }),
              AllOf(HasSubstr("layer 2"), HasSubstr("2 layers"), HasSubstr("3 tokens")));
  step.commit();
  EXPECT_EQ(cache.layer_count(), 2);
}

TEST(Step, AbandonedStepTakesLazyLayersAlong) {
  DynamicCache cache;
  {
    Step step = cache.begin_step({.tokens = 2, .batch = 1});
    const at::Tensor states = counting(0, 2, {1, 1, 1});
    for (const std::int64_t layer : {0, 1}) step.append(layer, states, states);
    EXPECT_EQ(cache.layer_count(), 2);
  }
  EXPECT_EQ(cache.layer_count(), 0);
  run(cache, {.tokens = 2, .batch = 2}, 3);
  EXPECT_EQ(cache.layer_count(), 3);
}

TEST(Step, FollowsARoundOfUpdates) {
  DynamicCache cache({kFull, kWindow4});
  feed(cache, 5, 1);
  EXPECT_THROW(cache.begin_step({.tokens = 1, .batch = 1}), RuntimeError);
  EXPECT_EQ(cache.history().seen(), 0);
  feed(cache, 5, 0);
  EXPECT_EQ(cache.history().seen(), 5);
  EXPECT_FALSE(cache.history().known());
  run(cache, {.tokens = 1, .batch = 1, .ids = at::zeros({1, 1}, at::kLong)}, 2);
  EXPECT_EQ(cache.get_seq_length(1), 6);
  cache.reset();
  EXPECT_TRUE(cache.history().known());
}

TEST(Step, ResetMendsAnUnfinishedRound) {
  DynamicCache cache({kFull, kFull});
  feed(cache, 5, 1);
  EXPECT_THROW(cache.clone(), RuntimeError);
  cache.reset();
  run(cache, {.tokens = 2, .batch = 3}, 2);
  EXPECT_EQ(cache.batch_size(), 3);
}

class Recording final : public Placement {
 public:
  explicit Recording(std::vector<std::string>& calls) : calls_(calls) {}
  void before(std::int64_t index, Layer&) override { calls_.push_back(c10::str("before ", index)); }
  void after(std::int64_t index, Layer& layer) override {
    calls_.push_back(c10::str("after ", index, " at ", layer.seen()));
  }
  void sync_for_visit(Layer&) override { calls_.push_back("visit"); }

 private:
  std::vector<std::string>& calls_;
};

TEST(Placement, IsToldOfEveryLayerInOrder) {
  std::vector<std::string> calls;
  LayeredCache cache(
      "recording", LayerStack({kFull, kWindow4}, dynamic_layers(), std::make_shared<TorchMemory>(),
                              std::make_unique<Recording>(calls)));
  run(cache, {.tokens = 3, .batch = 1}, 2);
  EXPECT_THAT(calls, ElementsAre("before 0", "after 0 at 0", "before 1", "after 1 at 0"));
  calls.clear();
  feed(cache, 1, 1);
  EXPECT_THAT(calls, ElementsAre("before 1", "after 1 at 3"));
  feed(cache, 1, 0);
  calls.clear();
  cache.nbytes();
  EXPECT_THAT(calls, ElementsAre("visit", "visit"));
  calls.clear();
  cache.clone();
  EXPECT_THAT(calls, ElementsAre("visit", "visit"));
}

TEST(Uncached, HandsTheStepsOwnKeysBack) {
  LayeredCache none = uncached({kFull, kWindow4});
  Step step = none.begin_step({.tokens = 6, .batch = 1});
  const at::Tensor states = counting(0, 6, {1, 1, 1});
  for (const std::int64_t layer : {0, 1}) {
    const View view = step.append(layer, states, states);
    EXPECT_EQ(view.segments[0].keys.const_data_ptr(), states.const_data_ptr());
    EXPECT_EQ(view.visible.length, 6);
  }
  EXPECT_EQ(none.kind(), "none");
}

}  // namespace
}  // namespace kvcache
