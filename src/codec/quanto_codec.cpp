#include "kvcache/codec/quanto_codec.h"

#include "codec/groups.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

const AffineCodecOptions& checked(const AffineCodecOptions& options) {
  check_value(options.bits == 2 || options.bits == 4 || options.bits == 8, "nbits is ",
              options.bits, "; backend quanto takes 2, 4 or 8");
  return options;
}

}  // namespace

QuantoCodec::QuantoCodec(const AffineCodecOptions& options) : AffineCodec(checked(options)) {}

void QuantoCodec::fit(std::vector<detail::Groups>& groups, std::int64_t bits) const {
  const std::int64_t most = (std::int64_t{1} << bits) - 1;
  for (detail::Groups& each : groups) {
    each.offsets = each.values.amin({3, 5}, /*keepdim=*/true);
    each.scales = each.values.amax({3, 5}, /*keepdim=*/true).sub_(each.offsets).div_(most);
    detail::set_nearest_codes(each, most);
  }
}

}  // namespace kvcache
