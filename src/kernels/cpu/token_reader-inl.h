// Dot products with tokens, and weighted sums of them, read where they lie. Included by tiles.cpp
// once for each kind of vectors.

#if defined(KVCACHE_TOKEN_READER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_TOKEN_READER_INL_H
#undef KVCACHE_TOKEN_READER_INL_H
#else
#define KVCACHE_TOKEN_READER_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/load_tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

constexpr std::int64_t kTile = 64;  // tokens at a time, a multiple of every number of lanes

using Words = hn::Rebind<std::uint32_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

inline std::int64_t lane_count() { return static_cast<std::int64_t>(hn::Lanes(Floats())); }

// ---- readers: how as many elements as there are lanes become kVectors vectors
// ---------------------
//
// Vector p of the elements from i on holds channels (i + lane) * kVectors + p: codes of a byte go
// to as many vectors, so that a shift and a mask are all it takes.

// Codes of 1, 2, 4 or 8 bits; an element is a byte.
template <int kBits>
struct CodeReader {
  static constexpr int kVectors = 8 / kBits;
  static constexpr std::int64_t kElementSize = 1;
  static constexpr bool kAlwaysFinite = true;

  static WordVector load(const std::uint8_t* bytes) {
    const hn::Rebind<std::uint8_t, Floats> d8;
    return hn::PromoteTo(Words(), hn::LoadU(d8, bytes));
  }
  template <int kIndex>
  static FloatVector value(WordVector bytes) {
    const hn::Rebind<std::int32_t, Floats> d32;
    if constexpr (kIndex > 0) bytes = hn::ShiftRight<kIndex * kBits>(bytes);
    if constexpr ((kIndex + 1) * kBits < 8) {
      bytes = hn::And(bytes, hn::Set(Words(), (1U << kBits) - 1));
    }
    return hn::ConvertTo(Floats(), hn::BitCast(d32, bytes));
  }
};

// Numbers, which are read as they are; an element is one.
struct NumberReader {
  static constexpr int kVectors = 1;
  static constexpr bool kAlwaysFinite = false;

  template <int kIndex>
  static FloatVector value(FloatVector values) {
    return values;
  }
};

struct Float8Reader : NumberReader {
  static constexpr std::int64_t kElementSize = 1;

  static FloatVector load(const std::uint8_t* codes) {
    return float8_values(hn::Rebind<std::uint8_t, Floats>(), codes);
  }
};

struct BFloat16Reader : NumberReader {
  static constexpr std::int64_t kElementSize = 2;

  static FloatVector load(const std::uint8_t* bytes) {
    const hn::Rebind<std::uint16_t, Floats> d16;
    const auto* numbers = reinterpret_cast<const std::uint16_t*>(bytes);
    const auto bits = hn::PromoteTo(Words(), hn::LoadU(d16, numbers));
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(bits));
  }
};

struct Float16Reader : NumberReader {
  static constexpr std::int64_t kElementSize = 2;

  static FloatVector load(const std::uint8_t* bytes) {
    const hn::Rebind<hwy::float16_t, Floats> d16;
    return hn::PromoteTo(Floats(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(bytes)));
  }
};

struct Float32Reader : NumberReader {
  static constexpr std::int64_t kElementSize = 4;

  static FloatVector load(const std::uint8_t* bytes) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(bytes));
  }
};

// Calls `call` with the reader of codes of `bits` bits, which must not be 3, or of numbers.
template <typename Call>
inline void with_reader(TokenSource::Kind kind, int bits, const Call& call) {
  switch (kind) {
    case TokenSource::Kind::float32:
      return call(Float32Reader());
    case TokenSource::Kind::bfloat16:
      return call(BFloat16Reader());
    case TokenSource::Kind::float16:
      return call(Float16Reader());
    case TokenSource::Kind::float8:
      return call(Float8Reader());
    default:
      if (bits == 1) return call(CodeReader<1>());
      if (bits == 2) return call(CodeReader<2>());
      if (bits == 4) return call(CodeReader<4>());
      return call(CodeReader<8>());
  }
}

// ---- tokens that a reader reads
// -------------------------------------------------------------------

// Consecutive tokens, or one group of their channels. What vectors are made of them lies in the
// order of the vectors: "in reading order".
struct Rows {
  const std::uint8_t* data = nullptr;  // of the first token
  const std::uint8_t* end = nullptr;   // of all that can be read
  std::int64_t stride = 0;             // bytes from token to token
  std::int64_t elements = 0;           // of a token, see readers
  std::int64_t count = 0;              // tokens, at most kTile
};

template <typename Reader>
inline auto load_elements(const Rows& rows, const std::uint8_t* bytes, std::int64_t count) {
  const std::int64_t lanes = lane_count(), size = Reader::kElementSize;
  // Codes of other tokens meet zeros, or what is not used.
  if (count >= lanes || (Reader::kAlwaysFinite && rows.end - bytes >= lanes * size)) {
    return Reader::load(bytes);
  }
  HWY_ALIGN std::uint8_t buffer[HWY_MAX_BYTES] = {};
  std::memcpy(buffer, bytes, std::min(static_cast<std::size_t>(count * size), sizeof buffer));
  return Reader::load(buffer);
}

// call(0), call(1), ..., as constants.
template <int kCount, typename Call>
HWY_INLINE void each(const Call& call) {
  if constexpr (kCount > 0) {
    each<kCount - 1>(call);
    call(std::integral_constant<int, kCount - 1>());
  }
}

#if HWY_TARGET == HWY_SCALAR
// The sum of each vector's lanes.
inline void store_sums(FloatVector a, FloatVector b, FloatVector c, FloatVector e, float* out) {
  const float sums[] = {hn::GetLane(a), hn::GetLane(b), hn::GetLane(c), hn::GetLane(e)};
  std::copy_n(sums, 4, out);
}
#else
// Sums over the blocks of 4 lanes of `v`.
template <typename D, typename V>
HWY_INLINE void store_four(D d, V v, float* out) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    store_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), out);
  } else {
    hn::StoreU(v, d, out);
  }
}

// The sum of each vector's lanes.
HWY_INLINE void store_sums(FloatVector a, FloatVector b, FloatVector c, FloatVector e, float* out) {
  const Floats d;
  const hn::RepartitionToWide<Floats> pairs;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, ce));
  const auto high = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, ce));
  store_four(d, hn::Add(hn::BitCast(d, low), hn::BitCast(d, high)), out);
}
#endif

// out[r][t] = query[r] . token t, for kQueries queries in reading order, `query_ld` apart; out is
// [kQueries, kTile].
template <typename Reader, int kQueries>
void dot_products(const Rows& rows, const float* query, std::int64_t query_ld, float* out) {
  constexpr int kVectors = Reader::kVectors;
  const Floats d;
  const std::int64_t lanes = lane_count();
  const auto after = [&](const std::uint8_t* token, std::int64_t index) {
    return index < rows.count ? token + rows.stride : token;
  };
  const std::uint8_t* first = rows.data;
  for (std::int64_t t = 0; t < rows.count; t += 4, first += 4 * rows.stride) {
    const std::uint8_t* second = after(first, t + 1);
    const std::uint8_t* third = after(second, t + 2);
    const std::uint8_t* fourth = after(third, t + 3);
    FloatVector sums[4][kQueries];
    each<4>([&](auto i) { each<kQueries>([&](auto r) { sums[i()][r()] = hn::Zero(d); }); });
    const float* q = query;
    for (std::int64_t e = 0; e < rows.elements; e += lanes, q += kVectors * lanes) {
      const std::int64_t left = rows.elements - e, from = e * Reader::kElementSize;
      const std::uint8_t* ahead = first + 4 * rows.stride + from;
      for (int i = 0; i < 4; ++i, ahead += rows.stride) hwy::Prefetch(ahead);
      const auto a = load_elements<Reader>(rows, first + from, left);
      const auto b = load_elements<Reader>(rows, second + from, left);
      const auto c = load_elements<Reader>(rows, third + from, left);
      const auto f = load_elements<Reader>(rows, fourth + from, left);
      each<kVectors>([&](auto p) {
        const FloatVector values[4] = {
            Reader::template value<p()>(a), Reader::template value<p()>(b),
            Reader::template value<p()>(c), Reader::template value<p()>(f)};
        each<kQueries>([&](auto r) {
          const auto of_query = hn::LoadU(d, q + r() * query_ld + p() * lanes);
          each<4>(
              [&](auto i) { sums[i()][r()] = hn::MulAdd(values[i()], of_query, sums[i()][r()]); });
        });
      });
    }
    each<kQueries>([&](auto r) {
      store_sums(sums[0][r()], sums[1][r()], sums[2][r()], sums[3][r()], out + r() * kTile + t);
    });
  }
}

// sums[r] += sum over tokens of weights[r][t] * token t, for kQueries of them in reading order,
// `sums_ld` apart; weights are [kQueries, kTile].
template <typename Reader, int kQueries>
void add_weighted(const Rows& rows, const float* weights, float* sums, std::int64_t sums_ld) {
  constexpr int kVectors = Reader::kVectors, kAtOnce = std::min(kVectors, 4);
  const Floats d;
  const std::int64_t lanes = lane_count();
  for (std::int64_t e = 0; e < rows.elements; e += lanes, sums += kVectors * lanes) {
    each<kVectors / kAtOnce>([&](auto part) {
      FloatVector total[kAtOnce][kQueries];
      const auto place = [&](auto p, auto r) {
        return sums + r() * sums_ld + (part() * kAtOnce + p()) * lanes;
      };
      each<kAtOnce>([&](auto p) {
        each<kQueries>([&](auto r) { total[p()][r()] = hn::LoadU(d, place(p, r)); });
      });
      const std::uint8_t* at = rows.data + e * Reader::kElementSize;
      for (std::int64_t t = 0; t < rows.count; ++t, at += rows.stride) {
        const auto raw = load_elements<Reader>(rows, at, rows.elements - e);
        FloatVector factors[kQueries];
        each<kQueries>([&](auto r) { factors[r()] = hn::Set(d, weights[r() * kTile + t]); });
        each<kAtOnce>([&](auto p) {
          const auto value = Reader::template value<part() * kAtOnce + p()>(raw);
          each<kQueries>(
              [&](auto r) { total[p()][r()] = hn::MulAdd(factors[r()], value, total[p()][r()]); });
        });
      }
      each<kAtOnce>([&](auto p) {
        each<kQueries>([&](auto r) { hn::StoreU(total[p()][r()], d, place(p, r)); });
      });
    });
  }
}

// In fours, and what is left: call(first row, their number as a constant).
template <typename Call>
inline void in_fours(std::int64_t rows, const Call& call) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) call(row, std::integral_constant<int, 4>());
  if (rows - row == 3) call(row, std::integral_constant<int, 3>());
  if (rows - row == 2) call(row, std::integral_constant<int, 2>());
  if (rows - row == 1) call(row, std::integral_constant<int, 1>());
}

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
