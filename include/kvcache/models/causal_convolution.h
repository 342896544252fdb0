// The short depthwise convolution over time that recurrent layers start with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/mixed_decoder.h"

namespace kvcache {

// A token's output is the weighted sum of its own input and those of the kernel_size - 1 tokens
// before it, channel by channel. x [batch, channels, kernel_size - 1 + tokens] starts with the left
// context, which is zero before the text's start; weight [channels, 1, kernel_size], bias
// [channels]; returns [batch, channels, tokens] in the dtype of x, summed up in float32.
at::Tensor causal_convolution(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias = {});

struct ConvolutionShape {
  std::int64_t channels;
  std::int64_t kernel_size;  // tokens
  bool bias = false;
};

// The same over a layer's convolution state.
struct CausalConvolution {
  at::Tensor weight;               // [channels, 1, kernel_size]
  std::optional<at::Tensor> bias;  // [channels]

  // Takes "weight" and, if the shape says so, "bias" from a view of its own weights.
  static CausalConvolution read(const StateDict& weights, const ConvolutionShape& shape);

  // x [batch, tokens, channels] -> a new tensor of that shape. Padding counts as zeros.
  at::Tensor operator()(const at::Tensor& x, const LayerContext& context) const;
};

}  // namespace kvcache
