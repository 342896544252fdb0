// Products of a few rows with a matrix on the CPU. Their time is that of reading the matrix once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace kvcache::detail {

inline constexpr std::int64_t kFewProductRows = 4;

// Whether few_row_product() takes `x` [n, in] and `transposed` [in, out]: at most kFewProductRows
// rows, both of one dtype (float32, bfloat16 or float16) on the CPU, the matrix a transposed one
// whose [out, in] adjoin, and no gradient wanted.
bool takes_few_rows(const at::Tensor& x, const at::Tensor& transposed);

// x transposed + bias [out]: [n, out]. Added up in float32 and rounded once.
at::Tensor few_row_product(const at::Tensor& x, const at::Tensor& transposed,
                           const std::optional<at::Tensor>& bias);

}  // namespace kvcache::detail
