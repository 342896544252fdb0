// The token mixer of Mamba (https://arxiv.org/abs/2312.00752): a gated convolution and selective
// scan. mamba and jamba share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/activations.h"
#include "kvcache/models/causal_convolution.h"
#include "kvcache/models/config.h"
#include "kvcache/models/linear.h"
#include "kvcache/models/mixed_decoder.h"
#include "kvcache/models/rms_norm.h"

namespace kvcache {

struct MambaMixer {
  Linear in;  // hidden -> inputs and gates, [2 * inner]
  CausalConvolution convolution;
  Activation activation;
  Linear selection;                                           // inner -> [rank + 2 * state_size]
  std::optional<RmsNorm> time_norm, input_norm, output_norm;  // of the three parts of it
  Linear time;                                                // rank -> inner
  at::Tensor time_bias;                                       // [inner]
  at::Tensor rates;  // [inner, state_size]: log of the pace at which states fade; see prepare()
  at::Tensor skip;   // [inner]
  Linear out;        // inner -> hidden

  // From a view of the mixer's own weights; `norms`: as jamba has them. Not ready for use:
  static MambaMixer read(const StateDict& weights, const ModelConfig& config, bool norms = false);

  // To be called once, when StateDict::verify() has confirmed the sizes. From then on `rates` are
  // below 0, and the tensors from time_bias to skip are float32.
  void prepare();

  // hidden [batch * tokens, hidden_size] -> the same shape, a new tensor.
  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const;
};

}  // namespace kvcache
