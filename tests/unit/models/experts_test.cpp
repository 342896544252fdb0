// The mixture of experts on one-number tokens, where every sum can be done by hand.
#include "kvcache/models/experts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kvcache/core/errors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

at::Tensor column(const std::vector<float>& values) { return at::tensor(values).view({-1, 1}); }

// x -> factor * x * x for x > 0.
GatedMlp square(float factor) {
  return {Linear(column({1})), Linear(column({factor})), Linear(column({1})),
          find_activation("relu")};
}

// Three experts: 10, 100 and 1000 times the square. The token x has scores -x, 0, x / 10.
ExpertsBlock block(std::int64_t top_k) {
  return {.router = {.scores = Linear(column({-1.0F, 0.0F, 0.1F})), .top_k = top_k},
          .experts = {square(10), square(100), square(1000)}};
}

TEST(Experts, SoftmaxWeighsOverAllExperts) {
  Router router = block(2).router;
  const double total = std::exp(-2.0) + 1 + std::exp(0.2);
  ExpertChoice choice = router(column({2}));
  EXPECT_TRUE(choice.experts.equal(ids_tensor({{2, 1}})));
  EXPECT_CLOSE(choice.weights, at::tensor({std::exp(0.2) / total, 1 / total}).view({1, 2}), 1e-6);
  router.normalize = true;
  choice = router(column({2}));
  EXPECT_CLOSE(choice.weights.sum(), at::tensor(1.0F), 1e-6);
  EXPECT_CLOSE(choice.weights.select(1, 0) / choice.weights.select(1, 1),
               at::tensor({std::exp(0.2)}), 1e-6);
}

TEST(Experts, SigmoidWeighsEachExpertAlone) {
  Router router = block(1).router;
  router.kind = Router::Scores::sigmoid;
  const ExpertChoice choice = router(column({5, -3}));
  EXPECT_TRUE(choice.experts.equal(ids_tensor({{2}, {0}})));
  EXPECT_CLOSE(choice.weights, at::sigmoid(column({0.5, 3})), 1e-6);
}

TEST(Experts, WeightsAreOfTheHiddenStatesDtype) {
  Router router = block(2).router;
  router.scores = Linear(column({-1.0F, 0.0F, 0.1F}).to(at::kBFloat16));
  EXPECT_EQ(router(column({2}).to(at::kBFloat16)).weights.scalar_type(), at::kBFloat16);
}

TEST(Experts, OutputsAddUpByWeight) {
  ExpertsBlock experts = block(2);
  experts.router.normalize = true;
  const double larger = std::exp(0.2) / (1 + std::exp(0.2)),
               next = std::exp(0.1) / (1 + std::exp(0.1));
  const at::Tensor expected = column({static_cast<float>(4 * (1000 * larger + 100 * (1 - larger))),
                                      static_cast<float>(1000 * next + 100 * (1 - next))});
  EXPECT_CLOSE(experts(column({2, 1})), expected, 1e-2);
}

// A sigmoid of 0 is a half: of the input it becomes a quarter of the square.
TEST(Experts, WeightsMayScaleTheInput) {
  ExpertsBlock experts{.router = {.scores = Linear(column({-9.0F, 0.0F})),
                                  .top_k = 1,
                                  .kind = Router::Scores::sigmoid},
                       .experts = {square(10), square(100)}};
  EXPECT_CLOSE(experts(column({2})), column({200}), 1e-4);
  experts.weigh_inputs = true;
  EXPECT_CLOSE(experts(column({2})), column({100}), 1e-4);
}

TEST(Experts, ASharedExpertSeesEveryTokenAndMayBeGated) {
  ExpertsBlock experts = block(1);
  experts.router.normalize = true;  // the one chosen weighs 1
  experts.shared = SharedExpert{square(1)};
  EXPECT_CLOSE(experts(column({3, 1})), column({9009, 1001}), 1e-2);
  experts.shared->gate = Linear(column({0}));
  EXPECT_CLOSE(experts(column({3, 1})), column({9004.5, 1000.5}), 1e-2);
}

// Every form in which files keep experts gives the same map.
TEST(Experts, ReadFromEveryLayout) {
  const ExpertsShape shape{.experts = 3, .hidden = 4, .inner = 5};
  const at::Tensor gate_up = at::randn({3, 10, 4}), down = at::randn({3, 4, 5});
  std::map<std::string, at::Tensor> split;
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::string name = std::to_string(i) + ".";
    split[name + "gate_proj.weight"] = gate_up[i].narrow(0, 0, 5).contiguous();
    split[name + "up_proj.weight"] = gate_up[i].narrow(0, 5, 5).contiguous();
    split[name + "down_proj.weight"] = down[i].contiguous();
  }
  const StateDict apart(split), fused({{"gate_up_proj", gate_up}, {"down_proj", down}});
  const StateDict turned({{"gate_up_proj", gate_up.transpose(1, 2).contiguous()},
                          {"down_proj", down.transpose(1, 2).contiguous()}});
  ExpertsShape input_first = shape;
  input_first.input_first = true;
  const Activation silu = find_activation("silu");
  const auto expected = read_experts(apart, shape, silu);
  const auto same = read_experts(fused, shape, silu);
  const auto also = read_experts(turned, input_first, silu);
  const at::Tensor x = at::randn({2, 4});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_CLOSE(same[i](x), expected[i](x), 1e-5) << "expert " << i;
    EXPECT_CLOSE(also[i](x), expected[i](x), 1e-5) << "expert " << i;
  }
  for (const StateDict& weights : {apart, fused, turned}) EXPECT_NO_THROW(weights.verify());
}

TEST(Experts, MissingWeightsAreListed) {
  const StateDict weights({{"0.gate_proj.weight", at::ones({5, 4})}});
  read_experts(weights, {.experts = 1, .hidden = 4, .inner = 5}, find_activation("silu"));
  EXPECT_THROW(weights.verify(), ValueError);
}

TEST(GatedMlp, FusedGateAndUpAreSplitInPlace) {
  const at::Tensor gate = at::randn({5, 4}), up = at::randn({5, 4}), down = at::randn({4, 5});
  const StateDict fused({{"gate_up_proj.weight", at::cat({gate, up})}, {"down_proj.weight", down}});
  const at::Tensor x = at::randn({2, 4});
  const GatedMlp apart{Linear(gate), Linear(up), Linear(down), find_activation("silu")};
  const GatedMlp read = GatedMlp::read(fused, {.hidden = 4, .inner = 5}, find_activation("silu"));
  EXPECT_CLOSE(read(x), apart(x), 1e-5);
  EXPECT_NO_THROW(fused.verify());
}

}  // namespace
}  // namespace kvcache::testing
