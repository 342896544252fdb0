// Small tensors from literals, differences with readable messages, and what else many tests write
// down.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kvcache/core/layer_spec.h"

namespace kvcache::testing {

using Rows = std::vector<std::vector<std::int64_t>>;

// int64 [rows, columns]
inline at::Tensor ids_tensor(const Rows& rows) {
  std::vector<at::Tensor> parts;
  for (const auto& row : rows) parts.push_back(at::tensor(row, at::kLong));
  return at::stack(parts);
}

// first, first + 1, ..., last
inline std::vector<std::int64_t> from_to(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(last - first + 1));
  std::iota(result.begin(), result.end(), first);
  return result;
}

// All values, as integers.
inline std::vector<std::int64_t> listed(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).flatten().contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

// A layer whose queries see so many tokens.
inline LayerSpec window(std::int64_t tokens) {
  return {.type = std::string(kSlidingAttention), .window = tokens};
}

// Largest absolute difference; NaN if either side has one.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

#define EXPECT_CLOSE(a, b, tolerance) \
  EXPECT_LE(::kvcache::testing::difference((a), (b)), (tolerance))

}  // namespace kvcache::testing
