// What attention reads: an ordered list of key/value segments, not one tensor, so that no storage
// has to join its history to decode a token.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/packed.h"
#include "kvcache/core/packing.h"
#include "kvcache/core/visible.h"

namespace kvcache {

// Keys and values of consecutive positions, as they are or packed.
struct Segment {
  at::Tensor keys = {};    // [batch or 1, kv_heads, length, key_dim]; 1 = shared by all rows
  at::Tensor values = {};  // [batch or 1, kv_heads, length, value_dim]
  std::int64_t first = 0;  // position of the first token
  std::shared_ptr<const PackedKeyValue> packed = {};  // instead of keys and values

  std::int64_t length() const { return packed ? packed->keys.tokens() : keys.size(2); }
  std::int64_t batch() const { return packed ? packed->keys.codes.size(0) : keys.size(0); }
  std::int64_t kv_heads() const { return packed ? packed->keys.codes.size(1) : keys.size(1); }
  std::int64_t key_dim() const { return packed ? packed->keys.format.head_dim : keys.size(3); }
  std::int64_t value_dim() const {
    return packed ? packed->values.format.head_dim : values.size(3);
  }
  at::ScalarType dtype() const { return packed ? packed->dtype : keys.scalar_type(); }
};

// Segments adjoin, in temporal order, from visible.offset on; their lengths add up to
// visible.length. A View is no snapshot: it holds until the step calls a later layer, commits or
// rolls back. Whoever keeps one longer keeps evicted memory alive.
struct View {
  c10::SmallVector<Segment, 3> segments;
  Visible visible;
  std::int64_t batch = 0;  // rows; also where every segment is shared
};

// A layer's keys and values, as Transformers' `update` returns them.
struct KeyValue {
  at::Tensor keys;    // [batch, kv_heads, tokens, key_dim]
  at::Tensor values;  // [batch, kv_heads, tokens, value_dim]
};

// What a layer's keys and values have in common over all tokens.
struct KeyValueShape {
  std::int64_t batch = 0;
  std::int64_t kv_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  friend bool operator==(const KeyValueShape&, const KeyValueShape&) = default;
};

inline KeyValueShape shape_of(const KeyValue& states) {
  return {.batch = states.keys.size(0),
          .kv_heads = states.keys.size(1),
          .key_dim = states.keys.size(3),
          .value_dim = states.values.size(3),
          .dtype = states.keys.scalar_type(),
          .device = states.keys.device()};
}

// Buffers of a fixed size, beyond what a layer's constructor was told.
struct FixedLayout {
  std::int64_t slots = 0;                    // tokens that have room
  std::optional<KeyValueShape> pinned = {};  // for good, if the shape was fixed ahead of the keys
};

// Tokens [first, first + length) of a segment as numbers. Copies only what is packed.
inline KeyValue dense(const Segment& segment, std::int64_t first, std::int64_t length) {
  if (!segment.packed) {
    return {segment.keys.narrow(2, first, length), segment.values.narrow(2, first, length)};
  }
  const PackedKeyValue& packed = *segment.packed;
  return {unpack(narrow(packed.keys, first, length), packed.dtype),
          unpack(narrow(packed.values, first, length), packed.dtype)};
}

// The view as one pair of tensors. Copies only if there are several segments, or packed ones.
inline KeyValue dense(const View& view) {
  const auto rows = [&](const at::Tensor& t) {
    return t.size(0) == view.batch ? t : t.expand({view.batch, -1, -1, -1});
  };
  std::vector<at::Tensor> keys, values;
  for (const Segment& segment : view.segments) {
    const KeyValue part = dense(segment, 0, segment.length());
    keys.push_back(rows(part.keys));
    values.push_back(rows(part.values));
  }
  if (keys.size() == 1) return {keys[0], values[0]};
  return {at::cat(keys, 2), at::cat(values, 2)};
}

}  // namespace kvcache
