// Root mean square normalization (https://arxiv.org/abs/1910.07467).
#pragma once

#include <ATen/core/Tensor.h>

namespace kvcache {

struct RmsNorm {
  at::Tensor weight;  // [size]
  double eps;

  // x [..., size] -> the same shape and dtype. Computed in float32, rounded to the dtype, then
  // weighted.
  at::Tensor operator()(const at::Tensor& x) const;
};

}  // namespace kvcache
