// 8-bit floating point with a scale for each head, which is kept as long as later values fit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kvcache/codec/codec.h"

namespace kvcache {

// A value of at least scale / 64 in size is off by a 16th of it at most, a smaller one by
// scale / 1024; the scale is a 448th of the largest in size, at least.
class Fp8Codec final : public Codec {
 public:
  static constexpr std::int64_t kGroupTokens = 64;  // of one scale

  PackedFormat format(std::int64_t head_dim, at::ScalarType dtype) const override;

  // A scale is that of the group before, or the least that holds all finite values where it would
  // not do. Infinities become the largest value; a NaN stays one and touches no other.
  PackedStates encode(const at::Tensor& states, const PackedFormat& format,
                      const at::Tensor& before) const override;
};

}  // namespace kvcache
