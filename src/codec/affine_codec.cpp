#include "kvcache/codec/affine_codec.h"

#include <algorithm>

#include "codec/groups.h"
#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMostInGroup = 65'536;

bool has_16_bits(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

}  // namespace

AffineCodec::AffineCodec(const AffineCodecOptions& options) : options_(options) {
  check_value(options.group_size >= 1 && options.group_size <= kMostInGroup, "q_group_size is ",
              options.group_size, "; it must be a number of values from 1 to ", kMostInGroup);
  const auto dtype = options.parameter_dtype.value_or(at::kFloat);
  check_value(dtype == at::kFloat || dtype == at::kHalf, "scales and offsets cannot be ",
              detail::dtype_name(dtype), "; they are float32 or float16");
}

PackedFormat AffineCodec::format(std::int64_t head_dim, at::ScalarType dtype) const {
  check_value(head_dim >= 1, "the head size is ", head_dim, "; it must be at least 1");
  PackedFormat format{.bits = options_.bits, .head_dim = head_dim};
  format.parameter_dtype =
      options_.parameter_dtype.value_or(has_16_bits(dtype) ? at::kHalf : at::kFloat);
  if (options_.over_tokens) {
    format.group_channels = 1;
    format.group_tokens = options_.group_size;
  } else {
    const std::int64_t groups = (head_dim + options_.group_size - 1) / options_.group_size;
    format.group_channels = (head_dim + groups - 1) / groups;
  }
  return format;
}

PackedStates AffineCodec::encode(const at::Tensor& states, const PackedFormat& format,
                                 const at::Tensor& /*before*/) const {
  std::vector<detail::Groups> groups = detail::grouped(states, format);
  fit(groups, format.bits);
  return detail::packed(std::move(groups), format);
}

}  // namespace kvcache
