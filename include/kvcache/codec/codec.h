// How keys and values become few bits. A codec holds settings only; what it makes depends on
// nothing but what it is given, and rows of a batch do not touch each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kvcache/core/packed.h"

namespace kvcache {

class Codec {
 public:
  virtual ~Codec() = default;

  // What becomes of states of this head size and dtype. The group size is settled here, from the
  // head size alone.
  virtual PackedFormat format(std::int64_t head_dim, at::ScalarType dtype) const = 0;

  // Packs states [batch, kv_heads, tokens, head_dim], whole groups of tokens. `before`: the scales
  // [batch, kv_heads, 1, channel_groups] of the group before, for codecs that keep them while they
  // will do; undefined: there is none. Throws ValueError for what does not fit the format.
  virtual PackedStates encode(const at::Tensor& states, const PackedFormat& format,
                              const at::Tensor& before) const = 0;
};

}  // namespace kvcache
