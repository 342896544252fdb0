// What attention reads: an ordered list of key/value segments, not one tensor, so that no storage
// has to join its history to decode a token.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/core/visible.h"

namespace kvcache {

// Keys and values of consecutive positions.
struct Segment {
  at::Tensor keys;         // [batch or 1, kv_heads, length, key_dim]; 1 = shared by all rows
  at::Tensor values;       // [batch or 1, kv_heads, length, value_dim]
  std::int64_t first = 0;  // position of the first token

  std::int64_t length() const { return keys.size(2); }
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

// Buffers of a fixed size, beyond what a layer's constructor was told.
struct FixedLayout {
  std::int64_t slots = 0;                    // tokens that have room
  std::optional<KeyValueShape> pinned = {};  // for good, if the shape was fixed ahead of the keys
};

// The view as one pair of tensors. Copies only if there are several segments.
inline KeyValue dense(const View& view) {
  const auto rows = [&](const at::Tensor& t) {
    return t.size(0) == view.batch ? t : t.expand({view.batch, -1, -1, -1});
  };
  if (view.segments.size() == 1) {
    return {rows(view.segments[0].keys), rows(view.segments[0].values)};
  }
  std::vector<at::Tensor> keys, values;
  for (const Segment& segment : view.segments) {
    keys.push_back(rows(segment.keys));
    values.push_back(rows(segment.values));
  }
  return {at::cat(keys, 2), at::cat(values, 2)};
}

}  // namespace kvcache
