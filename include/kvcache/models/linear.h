// A linear map as a plain struct.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "kvcache/io/state_dict.h"
#include "kvcache/kernels/few_rows.h"

namespace kvcache {

struct LinearShape {
  std::int64_t out;
  std::int64_t in;
  bool bias = false;
};

class Linear {
 public:
  Linear() = default;

  // weight [out, in], bias [out].
  explicit Linear(const at::Tensor& weight, std::optional<at::Tensor> bias = {})
      : transposed_(weight.t()), bias_(std::move(bias)) {}

  // Takes "weight" and, if the shape says so, "bias" from a view of the map's own weights.
  static Linear read(const StateDict& weights, const LinearShape& shape) {
    std::optional<at::Tensor> bias;
    if (shape.bias) bias = weights.take("bias", {shape.out});
    return Linear(weights.take("weight", {shape.out, shape.in}), std::move(bias));
  }

  at::Device device() const { return transposed_.device(); }

  // x [n, in] -> [n, out]
  at::Tensor operator()(const at::Tensor& x) const {
    if (detail::takes_few_rows(x, transposed_)) {
      return detail::few_row_product(x, transposed_, bias_);
    }
    return bias_ ? at::addmm(*bias_, x, transposed_) : at::mm(x, transposed_);
  }

  // The map to outputs [first, first + count) alone, over the same memory.
  Linear part(std::int64_t first, std::int64_t count) const {
    Linear result;
    result.transposed_ = transposed_.narrow(1, first, count);
    if (bias_) result.bias_ = bias_->narrow(0, first, count);
    return result;
  }

 private:
  at::Tensor transposed_;  // a view of the weight, kept so that no call has to make it
  std::optional<at::Tensor> bias_;
};

}  // namespace kvcache
