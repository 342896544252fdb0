// Tokens of any kind of source as float32. Included by tiles.cpp once for each kind of vectors.

#if defined(KVCACHE_LOAD_TOKENS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_LOAD_TOKENS_INL_H
#undef KVCACHE_LOAD_TOKENS_INL_H
#else
#define KVCACHE_LOAD_TOKENS_INL_H
#endif

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

inline void spread_4_bits(const std::uint8_t* bytes, std::int64_t count, std::uint8_t* codes) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<std::uint8_t, 16> d;
  const auto low = hn::Set(d, 15);
  for (; i + 32 <= count; i += 32) {
    const auto pairs = hn::LoadU(d, bytes + i / 2);
    const auto even = hn::And(pairs, low), odd = hn::ShiftRight<4>(pairs);
    hn::StoreU(hn::InterleaveLower(d, even, odd), d, codes + i);
    hn::StoreU(hn::InterleaveUpper(d, even, odd), d, codes + i + 16);
  }
#endif
  for (; i < count; ++i) codes[i] = (bytes[i / 2] >> (i % 2 * 4)) & 15;
}

// Codes of 1 or 2 bits, by what a byte holds.
template <int kBits>
inline void spread_by_table(const std::uint8_t* bytes, std::int64_t count, std::uint8_t* codes) {
  constexpr int kCodes = 8 / kBits;
  static const auto table = [] {
    std::array<std::array<std::uint8_t, kCodes>, 256> all{};
    for (int byte = 0; byte < 256; ++byte) {
      for (int i = 0; i < kCodes; ++i) {
        all[static_cast<std::size_t>(byte)][static_cast<std::size_t>(i)] =
            static_cast<std::uint8_t>((byte >> (i * kBits)) & ((1 << kBits) - 1));
      }
    }
    return all;
  }();
  std::int64_t i = 0;
  for (; i + kCodes <= count; i += kCodes) {
    std::memcpy(codes + i, table[bytes[i / kCodes]].data(), kCodes);
  }
  for (; i < count; ++i) codes[i] = table[bytes[i / kCodes]][static_cast<std::size_t>(i % kCodes)];
}

inline void spread_3_bits(const std::uint8_t* bytes, std::int64_t count, std::uint8_t* codes) {
  const std::int64_t size = (count * 3 + 7) / 8;
  std::int64_t whole = 0;
  for (; whole + 8 <= count; whole += 8) {
    const std::uint8_t* at = bytes + whole / 8 * 3;
    const std::uint64_t word = at[0] | std::uint64_t{at[1]} << 8 | std::uint64_t{at[2]} << 16;
    std::uint64_t codes_of_word = (word | word << 20) & 0x00000FFF00000FFFU;
    codes_of_word = (codes_of_word | codes_of_word << 10) & 0x003F003F003F003FU;
    codes_of_word = (codes_of_word | codes_of_word << 5) & 0x0707070707070707U;
    hwy::CopyBytes<8>(&codes_of_word, codes + whole);
  }
  for (std::int64_t i = whole; i < count; i += 8) {
    std::uint32_t word = 0;
    for (std::int64_t b = 0; b < 3 && i / 8 * 3 + b < size; ++b) {
      word |= std::uint32_t{bytes[i / 8 * 3 + b]} << (8 * b);
    }
    for (std::int64_t j = 0; j < 8 && i + j < count; ++j) {
      codes[i + j] = static_cast<std::uint8_t>((word >> (3 * j)) & 7);
    }
  }
}

// Codes of one token, a byte each. May return the bytes themselves.
inline const std::uint8_t* spread(const TokenSource& source, const std::uint8_t* bytes,
                                  std::uint8_t* codes) {
  switch (source.bits) {
    case 1:
      spread_by_table<1>(bytes, source.dim, codes);
      return codes;
    case 2:
      spread_by_table<2>(bytes, source.dim, codes);
      return codes;
    case 3:
      spread_3_bits(bytes, source.dim, codes);
      return codes;
    case 4:
      spread_4_bits(bytes, source.dim, codes);
      return codes;
    default:
      return bytes;
  }
}

inline float half_to_float(const std::uint8_t* bytes) {
  c10::Half half;
  std::memcpy(&half, bytes, sizeof half);
  return half;
}

inline float parameter(const TokenSource& source, const std::uint8_t* row, std::int64_t index) {
  if (source.half_parameters) return half_to_float(row + 2 * index);
  float value;
  std::memcpy(&value, row + 4 * index, sizeof value);
  return value;
}

// out[i] = codes[i] * scale + offset
inline void scale_codes(const std::uint8_t* codes, std::int64_t count, float scale, float offset,
                        float* out) {
  const Floats d;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const hn::Rebind<std::int32_t, Floats> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto scales = hn::Set(d, scale), offsets = hn::Set(d, offset);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto numbers = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
    hn::StoreU(hn::MulAdd(numbers, scales, offsets), d, out + i);
  }
  for (; i < count; ++i) out[i] = static_cast<float>(codes[i]) * scale + offset;
}

// The same with a scale and an offset for each.
inline void scale_codes(const std::uint8_t* codes, std::int64_t count, const float* scale,
                        const float* offset, float* out) {
  const Floats d;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const hn::Rebind<std::int32_t, Floats> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto numbers = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
    hn::StoreU(hn::MulAdd(numbers, hn::LoadU(d, scale + i), hn::LoadU(d, offset + i)), d, out + i);
  }
  for (; i < count; ++i) out[i] = static_cast<float>(codes[i]) * scale[i] + offset[i];
}

// Of codes in float8_e4m3fn. They are read as float16, whose exponent is 8 more, as its subnormal
// numbers cost no more than others.
template <typename D8>
inline hn::Vec<Floats> float8_values(D8 d8, const std::uint8_t* codes) {
  const Floats d;
  const hn::Rebind<std::uint16_t, Floats> d16;
  const hn::Rebind<hwy::float16_t, Floats> half;
  const auto bits = hn::PromoteTo(d16, hn::LoadU(d8, codes));
  const auto magnitude = hn::And(bits, hn::Set(d16, 0x7F));
  auto value = hn::ShiftLeft<7>(magnitude);
  value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(d16, 0x7F)), hn::Set(d16, 0x7E00), value);
  value = hn::Or(value, hn::ShiftLeft<8>(hn::And(bits, hn::Set(d16, 0x80))));
  return hn::Mul(hn::PromoteTo(d, hn::BitCast(half, value)), hn::Set(d, 256.0F));
}

inline void scale_float8(const std::uint8_t* codes, std::int64_t count, float scale, float* out) {
  const Floats d;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale);
  std::int64_t i = 0;
  for (; i < count; i += lanes) {
    std::uint8_t rest[64] = {};
    const std::uint8_t* from = codes + i;
    if (i + lanes > count)
      from =
          static_cast<std::uint8_t*>(std::memcpy(rest, from, static_cast<std::size_t>(count - i)));
    const auto value = hn::Mul(float8_values(d8, from), factor);
    float whole[64];
    if (i + lanes <= count) {
      hn::StoreU(value, d, out + i);
    } else {
      hn::StoreU(value, d, whole);
      std::copy(whole, whole + (count - i), out + i);
    }
  }
}

inline void load_bfloat16(const std::uint8_t* from, std::int64_t count, float* out) {
  const Floats d;
  const hn::Rebind<std::uint16_t, Floats> d16;
  const hn::Rebind<std::uint32_t, Floats> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto* numbers = reinterpret_cast<const std::uint16_t*>(from);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, numbers + i)));
    hn::StoreU(hn::BitCast(d, bits), d, out + i);
  }
  for (; i < count; ++i) {
    const std::uint32_t bits = std::uint32_t{numbers[i]} << 16;
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

inline void load_float16(const std::uint8_t* from, std::int64_t count, float* out) {
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> d16;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto* numbers = reinterpret_cast<const hwy::float16_t*>(from) + i;
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, numbers)), d, out + i);
  }
  for (; i < count; ++i) out[i] = half_to_float(from + 2 * i);
}

// Codes of tokens, whose parameters are those of groups of tokens or of channels.
inline void load_codes(const TokenSource& source, std::int64_t first, std::int64_t count,
                       float* out, std::int64_t ld) {
  HWY_ALIGN std::uint8_t codes[kMostHeadDim];
  HWY_ALIGN float scales[kMostHeadDim], offsets[kMostHeadDim];
  std::int64_t group_in_hand = -1;
  GroupOfTokens group_of_token;
  for (std::int64_t i = 0; i < count; ++i, out += ld) {
    const std::int64_t token = first + i;
    if (token >= group_of_token.end) group_of_token = source.group_at(token);
    const std::int64_t group = group_of_token.index;
    const std::uint8_t* scale_row = source.scales + group * source.parameter_stride;
    const std::uint8_t* bytes = source.data + token * source.stride;
    if (source.kind == TokenSource::Kind::float8) {
      for (std::int64_t c = 0, g = 0; c < source.dim; c += source.group_channels, ++g) {
        scale_float8(bytes + c, std::min(source.group_channels, source.dim - c),
                     parameter(source, scale_row, g), out + c);
      }
      continue;
    }
    const std::uint8_t* spread_codes = spread(source, bytes, codes);
    if (source.kind == TokenSource::Kind::symmetric) {
      const auto zero = static_cast<float>(1 << (source.bits - 1));
      for (std::int64_t c = 0, g = 0; c < source.dim; c += source.group_channels, ++g) {
        const float scale = parameter(source, scale_row, g);
        scale_codes(spread_codes + c, std::min(source.group_channels, source.dim - c), scale,
                    -zero * scale, out + c);
      }
      continue;
    }
    const std::uint8_t* offset_row = source.offsets + group * source.parameter_stride;
    if (source.group_channels == 1) {
      if (group != group_in_hand) {
        for (std::int64_t c = 0; c < source.dim; ++c) {
          scales[c] = parameter(source, scale_row, c);
          offsets[c] = parameter(source, offset_row, c);
        }
        group_in_hand = group;
      }
      scale_codes(spread_codes, source.dim, scales, offsets, out);
      continue;
    }
    for (std::int64_t c = 0, g = 0; c < source.dim; c += source.group_channels, ++g) {
      scale_codes(spread_codes + c, std::min(source.group_channels, source.dim - c),
                  parameter(source, scale_row, g), parameter(source, offset_row, g), out + c);
    }
  }
}

inline void load_tokens_impl(const TokenSource& source, std::int64_t first, std::int64_t count,
                             float* out, std::int64_t ld) {
  if (ld > source.dim) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::fill(out + i * ld + source.dim, out + (i + 1) * ld, 0.0F);
    }
  }
  if (source.scales != nullptr) return load_codes(source, first, count, out, ld);
  for (std::int64_t i = 0; i < count; ++i, out += ld) {
    const std::uint8_t* from = source.data + (first + i) * source.stride;
    if (source.kind == TokenSource::Kind::float32) {
      std::memcpy(out, from, static_cast<std::size_t>(source.dim) * sizeof(float));
    } else if (source.kind == TokenSource::Kind::bfloat16) {
      load_bfloat16(from, source.dim, out);
    } else {
      load_float16(from, source.dim, out);
    }
  }
}

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
