#include "kvcache/codec/fp8_codec.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <vector>

#include "codec/groups.h"
#include "codec/parameters.h"

namespace kvcache {
namespace {

constexpr double kLargest = 448;  // that a float8_e4m3fn can say

}  // namespace

PackedFormat Fp8Codec::format(std::int64_t head_dim, at::ScalarType /*dtype*/) const {
  detail::check_head_dim(head_dim);
  return {.kind = PackedFormat::Kind::float8,
          .bits = 8,
          .head_dim = head_dim,
          .group_channels = head_dim,
          .group_tokens = kGroupTokens};
}

PackedStates Fp8Codec::encode(const at::Tensor& states, const PackedFormat& format,
                              const at::Tensor& before) const {
  const at::Tensor values = detail::grouped(states, format).front().values;
  const at::Tensor sizes =
      at::where(values.isfinite(), values.abs(), at::zeros_like(values)).amax({3, 5});
  // Never 0, and a normal number.
  const at::Tensor needed = sizes.div_(kLargest).clamp_min_(std::numeric_limits<float>::min());
  std::vector<at::Tensor> scales;  // [batch, heads, 1, 1] each
  for (std::int64_t group = 0; group < needed.size(2); ++group) {
    const at::Tensor own = needed.narrow(2, group, 1);
    const at::Tensor& last = scales.empty() ? before : scales.back();
    scales.push_back(last.defined() ? at::maximum(own, last) : own);
  }
  const at::Tensor scale = at::cat(scales, 2);
  const at::Tensor scaled = values.div(scale.unsqueeze(3).unsqueeze(5));
  const at::Tensor codes = scaled.clamp_(-kLargest, kLargest)
                               .to(at::kFloat8_e4m3fn)
                               .view(at::kByte)
                               .reshape(states.sizes());
  return {.format = format, .codes = codes, .scales = scale};
}

}  // namespace kvcache
