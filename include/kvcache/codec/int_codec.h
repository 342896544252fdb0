// Whole numbers of 4 or 8 bits with one scale for each token and head, 0 exact.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "kvcache/codec/codec.h"

namespace kvcache {

struct IntCodecOptions {
  std::int64_t bits = 8;
  // Of scales, float32 or float16. Absent: float16 for states of 16 bits, else float32.
  std::optional<at::ScalarType> parameter_dtype = {};
};

// A value is off by half a step at most, the step being the largest in size over 2^(bits-1) - 1. A
// NaN or infinity makes all of its token and head NaN.
class IntCodec final : public Codec {
 public:
  // Throws ValueError unless bits is 4 or 8, and for another dtype of scales.
  explicit IntCodec(const IntCodecOptions& options);

  PackedFormat format(std::int64_t head_dim, at::ScalarType dtype) const override;
  PackedStates encode(const at::Tensor& states, const PackedFormat& format,
                      const at::Tensor& before) const override;

 private:
  IntCodecOptions options_;
};

}  // namespace kvcache
