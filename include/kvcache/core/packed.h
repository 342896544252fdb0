// Keys or values in few bits: what the bytes mean. Codecs make them, kernels and attention read
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace kvcache {

struct PackedFormat {
  enum class Kind {
    affine,     // value = offset + code * scale
    float8,     // value = code * scale, the code being a float8_e4m3fn
    symmetric,  // value = (code - 2^(bits - 1)) * scale
  };
  Kind kind = Kind::affine;
  std::int64_t bits = 4;            // of a code: 1, 2, 3, 4 or 8
  std::int64_t head_dim = 0;        // values of one token and head
  std::int64_t group_channels = 0;  // neighbouring ones that share scale and offset; the last group
                                    // of a head may have fewer ...
  std::int64_t group_tokens = 1;    // ... over so many tokens
  at::ScalarType parameter_dtype = at::kFloat;  // of scales and offsets: float32 or float16
  bool rotated = false;  // the values are those of rotated(): see core/rotation.h

  bool has_offsets() const { return kind == Kind::affine; }

  // Bytes of the codes of one token and head.
  std::int64_t code_bytes() const { return (head_dim * bits + 7) / 8; }

  // Groups that the values of one token and head fall into.
  std::int64_t channel_groups() const { return (head_dim + group_channels - 1) / group_channels; }

  friend bool operator==(const PackedFormat&, const PackedFormat&) = default;
};

// Codes of consecutive tokens with their scales and offsets. Code i of a token and head takes bits
// [i * bits, (i + 1) * bits) of its bytes, the lowest first; bits beyond the last are 0.
struct PackedStates {
  PackedFormat format;
  at::Tensor codes;         // uint8 [batch, kv_heads, tokens, format.code_bytes()]
  at::Tensor scales;        // [batch, kv_heads, groups, format.channel_groups()], parameter_dtype
  at::Tensor offsets = {};  // the same; undefined where the format has none
  // Tokens of each group, at most format.group_tokens: fewer after a crop. Empty: as many as may
  // be, but for the last.
  std::vector<std::int64_t> valid = {};

  std::int64_t tokens() const { return codes.size(2); }
};

// Keys and values of the same tokens, and the dtype that they had.
struct PackedKeyValue {
  PackedStates keys;
  PackedStates values;
  at::ScalarType dtype = at::kFloat;
};

}  // namespace kvcache
