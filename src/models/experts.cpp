#include "kvcache/models/experts.h"

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <tuple>

namespace kvcache {
namespace {

// The flat indices, in a choice's [n, top_k], of each expert's tokens. int64 on the CPU.
std::vector<std::vector<std::int64_t>> by_expert(const at::Tensor& choice, std::size_t experts) {
  std::vector<std::vector<std::int64_t>> slots(experts);
  const at::Tensor host = choice.to(at::kCPU).contiguous();
  const auto* chosen = host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    slots[static_cast<std::size_t>(chosen[i])].push_back(i);
  }
  return slots;
}

std::vector<GatedMlp> split_experts(const StateDict& weights, const ExpertsShape& shape,
                                    Activation activation) {
  const std::int64_t count = shape.experts, hidden = shape.hidden, inner = shape.inner;
  const bool input_first = shape.input_first;
  const auto take = [&](const char* name, std::int64_t out, std::int64_t in) {
    return input_first ? weights.take(name, {count, in, out}).transpose(1, 2)
                       : weights.take(name, {count, out, in});
  };
  const at::Tensor gate_up = take("gate_up_proj", 2 * inner, hidden);
  const at::Tensor down = take("down_proj", hidden, inner);
  std::vector<GatedMlp> experts;
  for (std::int64_t i = 0; i < count; ++i) {
    const Linear both(gate_up.select(0, i));
    experts.push_back(
        {both.part(0, inner), both.part(inner, inner), Linear(down.select(0, i)), activation});
  }
  return experts;
}

}  // namespace

ExpertChoice Router::operator()(const at::Tensor& hidden) const {
  at::Tensor all = scores(hidden);
  if (kind == Scores::softmax) all = at::softmax(all, -1, at::kFloat);
  auto [weights, experts] = at::topk(all, top_k, -1);
  if (kind == Scores::sigmoid) weights = at::sigmoid(weights.to(at::kFloat));
  if (normalize) weights = weights.div(weights.sum(-1, /*keepdim=*/true));
  return {experts, weights.to(hidden.scalar_type())};
}

std::vector<GatedMlp> read_experts(const StateDict& weights, const ExpertsShape& shape,
                                   Activation activation) {
  if (weights.contains("gate_up_proj")) return split_experts(weights, shape, activation);
  std::vector<GatedMlp> experts;
  for (std::int64_t i = 0; i < shape.experts; ++i) {
    experts.push_back(GatedMlp::read(weights.select(std::to_string(i)),
                                     {.hidden = shape.hidden, .inner = shape.inner}, activation));
  }
  return experts;
}

at::Tensor ExpertsBlock::operator()(const at::Tensor& hidden) const {
  const ExpertChoice choice = router(hidden);
  const at::Tensor weights = choice.weights.flatten().unsqueeze(1);
  at::Tensor result = at::zeros_like(hidden);
  const auto slots = by_expert(choice.experts, experts.size());
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (slots[i].empty()) continue;
    const at::Tensor where = at::tensor(slots[i], at::kLong).to(hidden.device());
    const at::Tensor tokens = where.div(router.top_k, "floor");
    const at::Tensor weight = weights.index_select(0, where);
    const at::Tensor input = hidden.index_select(0, tokens);
    result.index_add_(
        0, tokens, weigh_inputs ? experts[i](input.mul(weight)) : experts[i](input).mul_(weight));
  }
  if (!shared) return result;
  at::Tensor common = shared->mlp(hidden);
  if (shared->gate) common.mul_(at::sigmoid((*shared->gate)(hidden)));
  return result.add_(common);
}

}  // namespace kvcache
