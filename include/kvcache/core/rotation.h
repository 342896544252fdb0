// Turning states so that what is large in few channels spreads over many: they then quantize with
// less error, and products of two turned ones stay as they were
// (QuaRot, https://arxiv.org/abs/2404.00456).
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvcache {

// Channels that are turned together: the largest power of two that divides `dim`.
constexpr std::int64_t rotation_size(std::int64_t dim) {
  return std::int64_t{1} << std::countr_zero(static_cast<std::uint64_t>(dim));
}

// The last dimension, in blocks of rotation_size(), times the orthonormal Hadamard matrix of that
// size in Sylvester's order, which is its own inverse: [..., dim] in float32.
inline at::Tensor rotated(const at::Tensor& states) {
  const std::int64_t size = rotation_size(states.size(-1));
  at::Tensor blocks = states.to(at::kFloat).unflatten(-1, {-1, size});
  for (std::int64_t step = 1; step < size; step *= 2) {
    const at::Tensor pairs = blocks.unflatten(-1, {-1, 2, step});
    const at::Tensor first = pairs.select(-2, 0), second = pairs.select(-2, 1);
    blocks = at::stack({first.add(second), first.sub(second)}, -2).flatten(-3);
  }
  return blocks.mul(1 / std::sqrt(static_cast<double>(size))).flatten(-2);
}

}  // namespace kvcache
