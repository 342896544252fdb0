// Counting keys: the key and the value of the token at position p in row r are the number
// p + 1000 * r, so that contents can be read in an assertion.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/core/view.h"

namespace kvcache::testing {

inline constexpr std::int64_t kRowStep = 1000;

// [batch, heads, tokens, dim] for positions first, first + 1, ...
inline at::Tensor counting(std::int64_t first, std::int64_t tokens, at::IntArrayRef batch_heads_dim,
                           at::ScalarType dtype = at::kFloat) {
  const std::int64_t batch = batch_heads_dim[0];
  at::Tensor result = at::empty({batch, batch_heads_dim[1], tokens, batch_heads_dim[2]}, dtype);
  for (std::int64_t row = 0; row < batch; ++row) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      result.select(0, row).select(1, i).fill_(first + i + kRowStep * row);
    }
  }
  return result;
}

// What a tensor of counting keys holds in one row, checked to be equal over heads and dims.
inline std::vector<std::int64_t> numbers(const at::Tensor& states, std::int64_t row = 0) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < states.size(2); ++i) {
    const at::Tensor token = states.select(0, row).select(1, i).to(at::kDouble);
    const double value = token.flatten()[0].item<double>();
    if (!token.eq(value).all().item<bool>()) return {-1};
    result.push_back(static_cast<std::int64_t>(value));
  }
  return result;
}

// Feeds `tokens` counting keys to one layer of a cache, outside a step, and returns the keys handed
// back in row 0.
inline std::vector<std::int64_t> feed(Cache& cache, std::int64_t tokens, std::int64_t layer = 0) {
  const at::Tensor states = counting(cache.get_seq_length(layer), tokens, {1, 1, 1});
  return numbers(cache.update(states, states, layer).keys);
}

}  // namespace kvcache::testing
