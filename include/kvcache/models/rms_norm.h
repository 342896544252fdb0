// Root mean square normalization (https://arxiv.org/abs/1910.07467).
#pragma once

#include <ATen/core/Tensor.h>

namespace kvcache {

class RmsNorm {
 public:
  RmsNorm() = default;

  // weight [size]; eps is added to the mean of squares. Computed in float32, rounded to the dtype,
  // then weighted.
  RmsNorm(const at::Tensor& weight, double eps);

  // Gemma's form: 1 + weight in place of the weight, and all of it in float32 before rounding.
  static RmsNorm zero_centered(const at::Tensor& weight, double eps);

  // Without a weight.
  static RmsNorm unweighted(double eps, at::Device device);

  at::Device device() const { return eps_.device(); }

  // x [..., size] -> a new tensor of the same shape and dtype.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;       // undefined: none
  at::Tensor wide_weight_;  // float32, applied before rounding; undefined: none
  at::Tensor eps_;          // float32 [1], on the weight's device
};

}  // namespace kvcache
