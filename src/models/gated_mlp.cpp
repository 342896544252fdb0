#include "kvcache/models/gated_mlp.h"

namespace kvcache {

GatedMlp GatedMlp::read(const StateDict& weights, const MlpShape& shape, Activation activation) {
  const std::int64_t hidden = shape.hidden, inner = shape.inner;
  const Linear down = Linear::read(weights.select("down_proj"), {hidden, inner, shape.bias});
  if (weights.contains("gate_up_proj.weight")) {
    const Linear both =
        Linear::read(weights.select("gate_up_proj"), {2 * inner, hidden, shape.bias});
    return {both.part(0, inner), both.part(inner, inner), down, activation};
  }
  return {Linear::read(weights.select("gate_proj"), {inner, hidden, shape.bias}),
          Linear::read(weights.select("up_proj"), {inner, hidden, shape.bias}), down, activation};
}

at::Tensor GatedMlp::operator()(const at::Tensor& hidden) const {
  return down(activation(gate(hidden)).mul_(up(hidden)));
}

}  // namespace kvcache
