// A linear map as a plain struct.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <optional>
#include <utility>

namespace kvcache {

class Linear {
 public:
  Linear() = default;

  // weight [out, in], bias [out].
  explicit Linear(const at::Tensor& weight, std::optional<at::Tensor> bias = {})
      : transposed_(weight.t()), bias_(std::move(bias)) {}

  // x [n, in] -> [n, out]
  at::Tensor operator()(const at::Tensor& x) const {
    return bias_ ? at::addmm(*bias_, x, transposed_) : at::mm(x, transposed_);
  }

 private:
  at::Tensor transposed_;  // a view of the weight, kept so that no call has to make it
  std::optional<at::Tensor> bias_;
};

}  // namespace kvcache
