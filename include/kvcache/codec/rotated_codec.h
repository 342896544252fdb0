// Another codec, over states that were turned first: see core/rotation.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kvcache/codec/codec.h"

namespace kvcache {

// Errors are those of the other codec, over turned states, whose sizes are as large in the square
// mean but more alike.
class RotatedCodec final : public Codec {
 public:
  // Throws ValueError for null.
  explicit RotatedCodec(std::shared_ptr<const Codec> codec);

  PackedFormat format(std::int64_t head_dim, at::ScalarType dtype) const override;
  PackedStates encode(const at::Tensor& states, const PackedFormat& format,
                      const at::Tensor& before) const override;

 private:
  std::shared_ptr<const Codec> codec_;
};

}  // namespace kvcache
