// The numbers that make_codecs.py and make_quantized_traces.py give to codecs.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace kvcache::testing {

// float32 of this shape in [-4, 4), exact, most of them small.
inline at::Tensor codec_values(const std::vector<std::int64_t>& shape, std::int64_t salt) {
  const at::Tensor i = at::arange(c10::multiply_integers(shape), at::kLong);
  const at::Tensor steps =
      (i * i * 31 + i * 17 + salt * 7919).remainder(509).sub(254).to(at::kFloat).div(64);
  return steps.mul(steps.abs()).div(4).reshape(shape);
}

}  // namespace kvcache::testing
