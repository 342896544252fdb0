// A linear map as a plain struct.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>

#include <optional>

namespace kvcache {

struct Linear {
  at::Tensor weight;               // [out, in]
  std::optional<at::Tensor> bias;  // [out]

  // x [..., in] -> [..., out]
  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
};

}  // namespace kvcache
