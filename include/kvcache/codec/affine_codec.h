// What the codecs have in common whose values are offset + code * scale within a group.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/codec/codec.h"

namespace kvcache {

namespace detail {
struct Groups;
}

struct AffineCodecOptions {
  std::int64_t bits = 4;
  std::int64_t group_size = 64;  // values that share a scale, at least 1
  // One channel of consecutive tokens instead of neighbouring channels of one token: the way for
  // keys, whose channels differ in size (KIVI, https://arxiv.org/abs/2402.02750).
  bool over_tokens = false;
  // Of scales and offsets, float32 or float16. Absent: float16 for states of 16 bits, else float32.
  std::optional<at::ScalarType> parameter_dtype = {};
};

class AffineCodec : public Codec {
 public:
  static constexpr std::int64_t kMostInGroup = 65'536;  // values

  // Within a token, groups are of equal size, at most group_size, but for the last: head size 80 in
  // groups of at most 64 makes two of 40.
  PackedFormat format(std::int64_t head_dim, at::ScalarType dtype) const final;

  // Fits scales and offsets in float32. float16 ones are clamped to what it can say, and codes
  // follow the rounded ones. A NaN or infinity makes all of its group NaN, and no other.
  PackedStates encode(const at::Tensor& states, const PackedFormat& format,
                      const at::Tensor& before) const final;

 protected:
  // Throws ValueError for options out of range.
  explicit AffineCodec(const AffineCodecOptions& options);

  // Fills in codes, scales and offsets of all groups of one tensor; see src/codec/groups.h.
  virtual void fit(std::vector<detail::Groups>& groups, std::int64_t bits) const = 0;

 private:
  AffineCodecOptions options_;
};

}  // namespace kvcache
