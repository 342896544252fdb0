// Half-quadratic quantization: steps as for the range of a group, moved so that the p-norm of the
// errors becomes small (https://mobiusml.github.io/hqq_blog/).
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache/codec/affine_codec.h"

namespace kvcache {

// A value is off by a step at most, (largest - least) / (2^bits - 1), or by 1e-4 in groups that
// spread no further than that; most are off by half a step at most.
class HqqCodec final : public AffineCodec {
 public:
  // Throws ValueError unless bits is 1, 2, 3, 4 or 8.
  explicit HqqCodec(const AffineCodecOptions& options);

 private:
  // The search ends for a row of the batch once the mean error over all of its finite groups no
  // longer falls.
  void fit(std::vector<detail::Groups>& groups, std::int64_t bits) const override;
};

}  // namespace kvcache
