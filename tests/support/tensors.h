// Small tensors from literals, and differences with readable messages.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvcache::testing {

using Rows = std::vector<std::vector<std::int64_t>>;

// int64 [rows, columns]
inline at::Tensor ids_tensor(const Rows& rows) {
  std::vector<at::Tensor> parts;
  for (const auto& row : rows) parts.push_back(at::tensor(row, at::kLong));
  return at::stack(parts);
}

// Largest absolute difference; NaN if either side has one.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

#define EXPECT_CLOSE(a, b, tolerance) \
  EXPECT_LE(::kvcache::testing::difference((a), (b)), (tolerance))

}  // namespace kvcache::testing
