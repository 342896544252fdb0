// Dot products of a few vectors with the rows of a matrix: plain pointers.
#pragma once

#include <cstdint>

#include "kernels/cpu/tiles.h"

namespace kvcache::kernels {

struct Products {
  TokenSource::Kind kind;      // of the matrix: float32, bfloat16 or float16
  const std::uint8_t* matrix;  // [.., width], rows one after the other
  std::int64_t width;
  const float* vectors;    // [count, vector_ld]: zeros from `width` on
  std::int64_t vector_ld;  // a multiple of kVectorStep
  std::int64_t count;
  float* out;  // [count, out_ld]
  std::int64_t out_ld;
};

constexpr std::int64_t kVectorStep = 64;  // of every number of lanes a multiple

// out[v][row] for rows [first, end) of the matrix.
void multiply(const Products& products, std::int64_t first, std::int64_t end);

}  // namespace kvcache::kernels
