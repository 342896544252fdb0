// A codec for whole numbers from -255 to 255, of one sign in a group, which come back as they were:
// what storages do with packed tokens can then be told exactly.
#pragma once

#include <ATen/ops/zeros_like.h>

#include <cstdint>

#include "kvcache/codec/codec.h"

namespace kvcache::testing {

class ExactCodec final : public Codec {
 public:
  // Of so many tokens in a group, though none needs the others.
  explicit ExactCodec(std::int64_t group_tokens) : group_tokens_(group_tokens) {}

  PackedFormat format(std::int64_t head_dim, at::ScalarType) const override {
    return {
        .bits = 8, .head_dim = head_dim, .group_channels = head_dim, .group_tokens = group_tokens_};
  }

  PackedStates encode(const at::Tensor& states, const PackedFormat& format,
                      const at::Tensor&) const override {
    const std::int64_t groups = states.size(2) / format.group_tokens;
    const at::Tensor values =
        states.to(at::kFloat).reshape({states.size(0), states.size(1), groups, -1});
    const at::Tensor scales = values.sum(3, /*keepdim=*/true).lt(0).to(at::kFloat).mul(-2).add(1);
    return {.format = format,
            .codes = values.mul(scales).to(at::kByte).reshape(states.sizes()),
            .scales = scales,
            .offsets = at::zeros_like(scales)};
  }

 private:
  std::int64_t group_tokens_;
};

}  // namespace kvcache::testing
