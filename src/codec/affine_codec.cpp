#include "kvcache/codec/affine_codec.h"

#include "codec/groups.h"
#include "codec/parameters.h"
#include "kvcache/core/errors.h"

namespace kvcache {

AffineCodec::AffineCodec(const AffineCodecOptions& options) : options_(options) {
  check_value(options.group_size >= 1 && options.group_size <= kMostInGroup, "q_group_size is ",
              options.group_size, "; it must be a number of values from 1 to ", kMostInGroup);
  detail::check_parameter_dtype(options.parameter_dtype);
}

PackedFormat AffineCodec::format(std::int64_t head_dim, at::ScalarType dtype) const {
  detail::check_head_dim(head_dim);
  PackedFormat format{.bits = options_.bits, .head_dim = head_dim};
  format.parameter_dtype = detail::parameter_dtype_for(options_.parameter_dtype, dtype);
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
