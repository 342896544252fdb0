// Root mean square normalization (https://arxiv.org/abs/1910.07467).
#pragma once

#include <ATen/core/Tensor.h>

namespace kvcache {

class RmsNorm {
 public:
  RmsNorm() = default;

  // weight [size]; eps is added to the mean of squares.
  RmsNorm(const at::Tensor& weight, double eps);

  at::Device device() const { return weight_.device(); }

  // x [..., size] -> a new tensor of the same shape and dtype. Computed in float32, rounded to the
  // dtype, then weighted.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  at::Tensor eps_;  // float32 [1], on the weight's device
};

}  // namespace kvcache
