#include "codec/parameters.h"

#include <ATen/ops/where.h>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {

void check_parameter_dtype(std::optional<at::ScalarType> asked) {
  const at::ScalarType dtype = asked.value_or(at::kFloat);
  check_value(dtype == at::kFloat || dtype == at::kHalf, "scales and offsets cannot be ",
              dtype_name(dtype), "; they are float32 or float16");
}

at::ScalarType parameter_dtype_for(std::optional<at::ScalarType> asked, at::ScalarType states) {
  const bool has_16_bits = states == at::kHalf || states == at::kBFloat16;
  return asked.value_or(has_16_bits ? at::kHalf : at::kFloat);
}

void check_head_dim(std::int64_t head_dim) {
  check_value(head_dim >= 1, "the head size is ", head_dim, "; it must be at least 1");
}

at::Tensor as_half(const at::Tensor& parameters) {
  constexpr double kMost = 65504;
  const at::Tensor clamped =
      at::where(parameters.isfinite(), parameters.clamp(-kMost, kMost), parameters);
  return clamped.to(at::kHalf).to(at::kFloat);
}

}  // namespace kvcache::detail
