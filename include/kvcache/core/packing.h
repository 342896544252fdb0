// Codes to bytes and back, and packed states to numbers, in plain ATen calls: right on every
// device, and what faster kernels are compared with.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/packed.h"
#include "kvcache/core/rotation.h"

namespace kvcache {

namespace detail {

inline void check_bits(std::int64_t bits) {
  check_value((bits >= 1 && bits <= 4) || bits == 8, "codes have ", bits,
              " bits; they can have 1, 2, 3, 4 or 8");
}

// int64 [count]: 0, stride, 2 * stride, ...
inline at::Tensor shifts(std::int64_t count, std::int64_t stride, at::Device device) {
  return at::arange(count, at::TensorOptions().dtype(at::kLong).device(device)).mul_(stride);
}

// The last dimension in rows of `width`, the last row filled up with zeros: [..., rows, width].
inline at::Tensor in_rows_of(const at::Tensor& t, std::int64_t width) {
  const std::int64_t missing = (width - t.size(-1) % width) % width;
  const at::Tensor padded = missing > 0 ? at::constant_pad_nd(t, {0, missing}) : t;
  return padded.unflatten(-1, {-1, width});
}

// 8 values of `from` bits each become as many bits in values of `to` bits: codes and bytes are each
// other's inverse.
inline at::Tensor regrouped(const at::Tensor& values, std::int64_t from, std::int64_t to) {
  const std::int64_t total = from == 8 ? 8 * to : 8 * from;  // bits of a group, at most 32
  const at::Tensor words = in_rows_of(values, total / from)
                               .to(at::kLong)
                               .bitwise_left_shift(shifts(total / from, from, values.device()))
                               .sum(-1, /*keepdim=*/true);
  return words.bitwise_right_shift(shifts(total / to, to, values.device()))
      .bitwise_and((std::int64_t{1} << to) - 1)
      .to(at::kByte)
      .flatten(-2);
}

}  // namespace detail

// uint8 codes [..., n], each below 2^bits, as bytes uint8 [..., (n * bits + 7) / 8]; see
// PackedStates. Throws ValueError for bits that are not 1, 2, 3, 4 or 8.
inline at::Tensor pack_codes(const at::Tensor& codes, std::int64_t bits) {
  detail::check_bits(bits);
  if (bits == 8) return codes;
  const at::Tensor bytes = detail::regrouped(codes, bits, 8);
  return bytes.narrow(-1, 0, (codes.size(-1) * bits + 7) / 8).contiguous();
}

// The first `count` codes of each row of bytes: uint8 [..., count].
inline at::Tensor unpack_codes(const at::Tensor& bytes, std::int64_t bits, std::int64_t count) {
  detail::check_bits(bits);
  check_value(bytes.size(-1) == (count * bits + 7) / 8, count, " codes of ", bits,
              " bits do not take ", bytes.size(-1), " bytes");
  if (bits == 8) return bytes;
  return detail::regrouped(bytes, 8, bits).narrow(-1, 0, count);
}

namespace detail {

inline void check_packed(const PackedStates& packed) {
  const PackedFormat& format = packed.format;
  const auto is = [](const at::Tensor& t, at::ScalarType dtype, std::int64_t last) {
    return t.defined() && t.dim() == 4 && t.scalar_type() == dtype && t.size(3) == last;
  };
  check_value(is(packed.codes, at::kByte, format.code_bytes()), "packed codes must be uint8 ",
              "[batch, kv_heads, tokens, ", format.code_bytes(), "]");
  std::int64_t tokens = 0;
  for (const std::int64_t valid : packed.valid) tokens += valid;
  const std::int64_t groups =
      packed.valid.empty() ? (packed.tokens() + format.group_tokens - 1) / format.group_tokens
                           : static_cast<std::int64_t>(packed.valid.size());
  check_value(packed.valid.empty() || tokens == packed.tokens(), "there are ", packed.tokens(),
              " packed tokens, but groups of ", tokens);
  for (const at::Tensor* t : {&packed.scales, &packed.offsets}) {
    if (t == &packed.offsets && !format.has_offsets()) continue;
    check_value(is(*t, format.parameter_dtype, format.channel_groups()) &&
                    t->sizes().slice(0, 2) == packed.codes.sizes().slice(0, 2) &&
                    t->size(2) == groups,
                "scales and offsets of ", packed.tokens(), " packed tokens must be ",
                dtype_name(format.parameter_dtype), " [batch, kv_heads, ", groups, ", ",
                format.channel_groups(), "]");
  }
}

// Scales or offsets of every token and channel: float32 [batch, kv_heads, tokens, head_dim].
inline at::Tensor of_every_value(const at::Tensor& parameters, const PackedStates& packed) {
  const PackedFormat& format = packed.format;
  at::Tensor each = parameters.to(at::kFloat);
  if (!packed.valid.empty()) {
    each = each.repeat_interleave(at::tensor(packed.valid, at::kLong).to(each.device()), 2);
  } else if (format.group_tokens > 1) {
    each = each.repeat_interleave(format.group_tokens, 2).narrow(2, 0, packed.tokens());
  }
  if (format.group_channels == 1) return each;
  return each.repeat_interleave(format.group_channels, 3).narrow(3, 0, format.head_dim);
}

// What codes uint8 [batch, kv_heads, tokens, head_dim] stand for, in float32.
inline at::Tensor values_of(const at::Tensor& codes, const PackedStates& packed) {
  const at::Tensor scales = of_every_value(packed.scales, packed);
  switch (packed.format.kind) {
    case PackedFormat::Kind::float8:
      return codes.view(at::kFloat8_e4m3fn).to(at::kFloat).mul_(scales);
    case PackedFormat::Kind::symmetric:
      return codes.to(at::kFloat).sub_(std::int64_t{1} << (packed.format.bits - 1)).mul_(scales);
    case PackedFormat::Kind::affine:
      break;
  }
  return codes.to(at::kFloat).mul_(scales).add_(of_every_value(packed.offsets, packed));
}

}  // namespace detail

// The states [batch, kv_heads, tokens, head_dim] in `dtype`, computed in float32. Throws ValueError
// for tensors that do not fit the format.
inline at::Tensor unpack(const PackedStates& packed, at::ScalarType dtype) {
  detail::check_packed(packed);
  const PackedFormat& format = packed.format;
  const at::Tensor codes = unpack_codes(packed.codes, format.bits, format.head_dim);
  const at::Tensor values = detail::values_of(codes, packed);
  return (format.rotated ? rotated(values) : values).to(dtype);
}

// Tokens [first, first + length), as views.
inline PackedStates narrow(const PackedStates& packed, std::int64_t first, std::int64_t length) {
  if (first == 0 && length == packed.tokens()) return packed;
  PackedStates part = packed;
  part.codes = packed.codes.narrow(2, first, length);
  part.valid.clear();
  std::int64_t group = first, groups = length;
  if (packed.format.group_tokens > 1) {
    group = 0;
    std::int64_t skipped = 0;  // tokens of groups before
    const auto tokens_of = [&](std::int64_t index) {
      return packed.valid.empty() ? packed.format.group_tokens
                                  : packed.valid[static_cast<std::size_t>(index)];
    };
    while (length > 0 && skipped + tokens_of(group) <= first) skipped += tokens_of(group++);
    std::int64_t begin = first - skipped;  // within the first group
    for (std::int64_t done = 0; done < length;) {
      const std::int64_t taken = std::min(
          tokens_of(group + static_cast<std::int64_t>(part.valid.size())) - begin, length - done);
      part.valid.push_back(taken);
      done += taken;
      begin = 0;
    }
    groups = static_cast<std::int64_t>(part.valid.size());
  }
  part.scales = packed.scales.narrow(2, group, groups);
  if (packed.offsets.defined()) part.offsets = packed.offsets.narrow(2, group, groups);
  return part;
}

inline PackedKeyValue narrow(const PackedKeyValue& packed, std::int64_t first,
                             std::int64_t length) {
  return {.keys = narrow(packed.keys, first, length),
          .values = narrow(packed.values, first, length),
          .dtype = packed.dtype};
}

}  // namespace kvcache
