// What codecs have in common about scales and offsets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace kvcache::detail {

// Throws ValueError for another one than float32 and float16.
void check_parameter_dtype(std::optional<at::ScalarType> asked);

// The one asked for; absent: float16 for states of 16 bits, else float32.
at::ScalarType parameter_dtype_for(std::optional<at::ScalarType> asked, at::ScalarType states);

// Throws ValueError for a head size below 1.
void check_head_dim(std::int64_t head_dim);

// Rounded to float16, as float32; what is finite stays so.
at::Tensor as_half(const at::Tensor& parameters);

}  // namespace kvcache::detail
