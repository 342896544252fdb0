// optimum-quanto's quantization: the range of a group in equal steps, the least value exact.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache/codec/affine_codec.h"

namespace kvcache {

// A value is off by half a step at most: (largest - least) / (2^bits - 1) / 2.
class QuantoCodec final : public AffineCodec {
 public:
  // Throws ValueError unless bits is 2, 4 or 8.
  explicit QuantoCodec(const AffineCodecOptions& options);

 private:
  void fit(std::vector<detail::Groups>& groups, std::int64_t bits) const override;
};

}  // namespace kvcache
