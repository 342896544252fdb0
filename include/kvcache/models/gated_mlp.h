// The gated MLP (https://arxiv.org/abs/2002.05202): down(act(gate(x)) * up(x)).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/activations.h"
#include "kvcache/models/linear.h"

namespace kvcache {

struct MlpShape {
  std::int64_t hidden;  // size of the input and the output
  std::int64_t inner;   // size between them
  bool bias = false;
};

struct GatedMlp {
  Linear gate, up, down;
  Activation activation;

  // Takes "gate_proj", "up_proj" and "down_proj" or, where the file has it, "gate_up_proj" (gate
  // first) in place of the first two, from a view of the MLP's own weights.
  static GatedMlp read(const StateDict& weights, const MlpShape& shape, Activation activation);

  // hidden [n, hidden] -> the same shape, a new tensor.
  at::Tensor operator()(const at::Tensor& hidden) const;
};

}  // namespace kvcache
