// Buffers of packed keys or values, and what a visitor is told of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "kvcache/core/buffer_bytes.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/packed.h"
#include "kvcache/core/view.h"
#include "kvcache/core/visitor.h"

namespace kvcache::detail {

// How a layer's keys and values are packed.
struct PackedFormats {
  PackedFormat keys;
  PackedFormat values;
  at::ScalarType dtype;  // that they had

  // Tokens are packed in multiples of so many, which is each side's group or all of its groups.
  std::int64_t group_tokens() const { return std::max(keys.group_tokens, values.group_tokens); }
};

// Keys or values, with spare room.
struct PackedSide {
  at::Tensor codes = {};    // uint8 [batch or 1, kv_heads, slots, code_bytes]
  at::Tensor scales = {};   // [batch or 1, kv_heads, slots or groups, channel_groups]
  at::Tensor offsets = {};  // likewise, or undefined
};

// Room of a block: tokens, and groups over tokens where there are such.
struct PackedRoom {
  std::int64_t slots = 0;
  std::int64_t groups = 0;

  std::int64_t parameters(const PackedFormat& format) const {
    return format.group_tokens == 1 ? slots : groups;
  }
};

// Bytes of buffers for keys and values of this shape.
inline std::int64_t packed_bytes(const PackedRoom& room, const KeyValueShape& shape,
                                 const PackedFormats& formats) {
  const auto of_side = [&](const PackedFormat& format) {
    return bytes_of({shape.batch, shape.kv_heads, room.slots, format.code_bytes()}, at::kByte) +
           (format.has_offsets() ? 2 : 1) *
               bytes_of(
                   {shape.batch, shape.kv_heads, room.parameters(format), format.channel_groups()},
                   format.parameter_dtype);
  };
  return of_side(formats.keys) + of_side(formats.values);
}

// Where a visitor finds what is promised, along dimension 2.
struct PackedLive {
  Range slots;                             // of codes
  Range parameters;                        // of scales and offsets
  std::optional<std::int64_t> fixed = {};  // slots of codes, where their number is fixed ...
  std::optional<std::int64_t> fixed_parameters = {};  // ... and of the others
  bool all_rows = false;
  bool writable = true;
};

struct PackedNames {
  std::string_view codes, scales, offsets;
};

inline constexpr PackedNames kKeyNames{"packed_keys", "packed_key_scales", "packed_key_offsets"};
inline constexpr PackedNames kValueNames{"packed_values", "packed_value_scales",
                                         "packed_value_offsets"};

// Whether all of the side's tensors were replaced. `has_offsets`: it has or is to be given some.
inline bool visit_side(Visitor& visitor, PackedSide& side, const PackedNames& names,
                       const PackedLive& live, bool has_offsets) {
  bool replaced = true;
  const auto visit_one = [&](std::string_view name, at::Tensor& tensor, Range part,
                             std::optional<std::int64_t> slots) {
    TensorInfo info{.name = name,
                    .role = Role::packed,
                    .token_dim = 2,
                    .live = part,
                    .slots = slots,
                    .writable = live.writable};
    if (!live.all_rows) info.batch_dim = 0;
    at::Tensor handle = tensor;
    visitor.tensor(info, handle);
    replaced = replaced && tensor.defined() && !handle.is_same(tensor);
    tensor = std::move(handle);
  };
  visit_one(names.codes, side.codes, live.slots, live.fixed);
  visit_one(names.scales, side.scales, live.parameters, live.fixed_parameters);
  if (has_offsets) visit_one(names.offsets, side.offsets, live.parameters, live.fixed_parameters);
  return replaced;
}

// Throws ValueError for buffers that lack tensors or have other rows or heads.
inline void check_rows(const PackedSide& side, const KeyValueShape& shape) {
  check_value(side.codes.defined() && side.scales.defined() && side.codes.dim() == 4 &&
                  side.codes.size(0) == shape.batch && side.codes.size(1) == shape.kv_heads,
              "packed keys and values must have ", shape.batch, " rows and ", shape.kv_heads,
              " heads, as those that are not packed");
}

}  // namespace kvcache::detail
