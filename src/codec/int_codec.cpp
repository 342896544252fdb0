#include "kvcache/codec/int_codec.h"

#include "codec/groups.h"
#include "codec/parameters.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/packing.h"

namespace kvcache {

IntCodec::IntCodec(const IntCodecOptions& options) : options_(options) {
  check_value(options.bits == 4 || options.bits == 8, "nbits is ", options.bits,
              "; backend int takes 4 or 8");
  detail::check_parameter_dtype(options.parameter_dtype);
}

PackedFormat IntCodec::format(std::int64_t head_dim, at::ScalarType dtype) const {
  detail::check_head_dim(head_dim);
  return {.kind = PackedFormat::Kind::symmetric,
          .bits = options_.bits,
          .head_dim = head_dim,
          .group_channels = head_dim,
          .parameter_dtype = detail::parameter_dtype_for(options_.parameter_dtype, dtype)};
}

PackedStates IntCodec::encode(const at::Tensor& states, const PackedFormat& format,
                              const at::Tensor& /*before*/) const {
  detail::check_states(states, format);
  const at::Tensor values = states.to(at::kFloat);
  const std::int64_t zero = std::int64_t{1} << (format.bits - 1);
  const auto most = static_cast<double>(zero - 1);
  at::Tensor scales = values.abs().amax(-1, /*keepdim=*/true).div_(most);
  if (format.parameter_dtype == at::kHalf) scales = detail::as_half(scales);
  const at::Tensor codes =
      values.div(scales).nan_to_num_(0).round_().clamp_(-most, most).add_(zero).to(at::kByte);
  return {.format = format,
          .codes = pack_codes(codes, format.bits),
          .scales = scales.to(format.parameter_dtype)};
}

}  // namespace kvcache
