#include "kvcache/codec/rotated_codec.h"

#include <utility>

#include "codec/groups.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/rotation.h"

namespace kvcache {

RotatedCodec::RotatedCodec(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {
  check_value(codec_ != nullptr, "the codec of a rotated one is null");
}

PackedFormat RotatedCodec::format(std::int64_t head_dim, at::ScalarType dtype) const {
  PackedFormat format = codec_->format(head_dim, dtype);
  format.rotated = true;
  return format;
}

PackedStates RotatedCodec::encode(const at::Tensor& states, const PackedFormat& format,
                                  const at::Tensor& before) const {
  detail::check_states(states, format);
  return codec_->encode(rotated(states), format, before);
}

}  // namespace kvcache
