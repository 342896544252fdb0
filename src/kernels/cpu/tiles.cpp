// See tiles.h. Compiled once for each kind of vectors (Highway).
#include "kernels/cpu/tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tiles.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After it:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/load_tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

constexpr std::int64_t kTile = 32;  // tokens

// Up to kRows rows of scores [rows, kTile] of keys [count, ld].
template <int kRows>
inline void score_rows(const float* query, std::int64_t query_ld, const float* keys,
                       std::int64_t ld, std::int64_t count, float* scores) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t t = 0; t < count; ++t) {
    const float* key = keys + t * ld;
    auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    for (std::int64_t c = 0; c < ld; c += lanes) {
      const auto k = hn::LoadU(d, key + c);
      s0 = hn::MulAdd(hn::LoadU(d, query + c), k, s0);
      if constexpr (kRows > 1) s1 = hn::MulAdd(hn::LoadU(d, query + query_ld + c), k, s1);
      if constexpr (kRows > 2) s2 = hn::MulAdd(hn::LoadU(d, query + 2 * query_ld + c), k, s2);
      if constexpr (kRows > 3) s3 = hn::MulAdd(hn::LoadU(d, query + 3 * query_ld + c), k, s3);
    }
    scores[t] = hn::GetLane(hn::SumOfLanes(d, s0));
    if constexpr (kRows > 1) scores[kTile + t] = hn::GetLane(hn::SumOfLanes(d, s1));
    if constexpr (kRows > 2) scores[2 * kTile + t] = hn::GetLane(hn::SumOfLanes(d, s2));
    if constexpr (kRows > 3) scores[3 * kTile + t] = hn::GetLane(hn::SumOfLanes(d, s3));
  }
}

// sums[c] += sum over t of weights[t] * values[t][c], for up to kRows rows.
template <int kRows>
inline void add_values(const float* weights, const float* values, std::int64_t ld,
                       std::int64_t count, float* sums) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t c = 0; c < ld; c += lanes) {
    auto s0 = hn::LoadU(d, sums + c), s1 = s0, s2 = s0, s3 = s0;
    if constexpr (kRows > 1) s1 = hn::LoadU(d, sums + ld + c);
    if constexpr (kRows > 2) s2 = hn::LoadU(d, sums + 2 * ld + c);
    if constexpr (kRows > 3) s3 = hn::LoadU(d, sums + 3 * ld + c);
    for (std::int64_t t = 0; t < count; ++t) {
      const auto v = hn::LoadU(d, values + t * ld + c);
      s0 = hn::MulAdd(hn::Set(d, weights[t]), v, s0);
      if constexpr (kRows > 1) s1 = hn::MulAdd(hn::Set(d, weights[kTile + t]), v, s1);
      if constexpr (kRows > 2) s2 = hn::MulAdd(hn::Set(d, weights[2 * kTile + t]), v, s2);
      if constexpr (kRows > 3) s3 = hn::MulAdd(hn::Set(d, weights[3 * kTile + t]), v, s3);
    }
    hn::StoreU(s0, d, sums + c);
    if constexpr (kRows > 1) hn::StoreU(s1, d, sums + ld + c);
    if constexpr (kRows > 2) hn::StoreU(s2, d, sums + 2 * ld + c);
    if constexpr (kRows > 3) hn::StoreU(s3, d, sums + 3 * ld + c);
  }
}

template <typename Call>
inline void in_fours(std::int64_t rows, const Call& call) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) call(row, std::integral_constant<int, 4>());
  if (rows - row == 3) call(row, std::integral_constant<int, 3>());
  if (rows - row == 2) call(row, std::integral_constant<int, 2>());
  if (rows - row == 1) call(row, std::integral_constant<int, 1>());
}

// Caps and hides scores of one row, and turns them into weights; returns what earlier sums fade by.
inline float weigh(const AttentionTask& task, std::int64_t row, std::int64_t column,
                   std::int64_t count, float* scores) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  if (task.softcap > 0) {
    for (std::int64_t t = 0; t < count; ++t) {
      scores[t] = task.softcap * std::tanh(scores[t] / task.softcap);
    }
  }
  if (task.allowed != nullptr) {
    const bool* allowed = task.allowed + row % task.tokens * task.columns + column;
    for (std::int64_t t = 0; t < count; ++t) {
      if (!allowed[t]) scores[t] = kNothing;
    }
  }
  for (std::int64_t t = count; t < kTile; ++t) scores[t] = kNothing;
  auto most = hn::Set(d, task.maxima[row]);
  for (std::int64_t t = 0; t < kTile; t += lanes) most = hn::Max(most, hn::LoadU(d, scores + t));
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, most));
  if (maximum == kNothing) {
    std::fill(scores, scores + kTile, 0.0F);
    return 1;
  }
  auto sum = hn::Zero(d);
  const auto base = hn::Set(d, maximum);
  for (std::int64_t t = 0; t < kTile; t += lanes) {
    const auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), base));
    hn::StoreU(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  const float fade = std::exp(task.maxima[row] - maximum);
  task.sums[row] = task.sums[row] * fade + hn::GetLane(hn::SumOfLanes(d, sum));
  task.maxima[row] = maximum;
  return fade;
}

void attend_impl(const AttentionTask& task) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto padded = [&](std::int64_t dim) { return (dim + lanes - 1) / lanes * lanes; };
  const std::int64_t key_ld = padded(task.key_dim), value_ld = padded(task.value_dim);
  const auto padded_rows = [&](const float* rows) {
    std::vector<float> result(static_cast<std::size_t>(task.rows * key_ld), 0.0F);
    for (std::int64_t r = 0; r < task.rows; ++r) {
      std::copy_n(rows + r * task.key_dim, task.key_dim, result.data() + r * key_ld);
    }
    return result;
  };
  const std::vector<float> query = padded_rows(task.query);
  std::vector<float> rotated;
  if (task.rotated_query != nullptr) rotated = padded_rows(task.rotated_query);
  std::vector<float> sums(static_cast<std::size_t>(task.rows * value_ld), 0.0F);
  std::vector<float> tile(static_cast<std::size_t>(kTile * std::max(key_ld, value_ld)));
  std::vector<float> scores(static_cast<std::size_t>(task.rows * kTile));
  for (std::int64_t r = 0; r < task.rows; ++r) {
    task.sums[r] = 0;
    task.maxima[r] = -std::numeric_limits<float>::infinity();
  }
  for (std::int64_t s = 0; s < task.segment_count; ++s) {
    const SegmentSource& segment = task.segments[s];
    const float* queries = segment.rotated ? rotated.data() : query.data();
    const std::int64_t end = std::min(task.end - segment.column, segment.tokens);
    for (std::int64_t t = std::max<std::int64_t>(task.first - segment.column, 0); t < end;
         t += kTile) {
      const std::int64_t count = std::min(kTile, end - t);
      load_tokens_impl(segment.keys, t, count, tile.data(), key_ld);
      in_fours(task.rows, [&](std::int64_t row, auto rows) {
        score_rows<rows()>(queries + row * key_ld, key_ld, tile.data(), key_ld, count,
                           scores.data() + row * kTile);
      });
      for (std::int64_t r = 0; r < task.rows; ++r) {
        const float fade = weigh(task, r, segment.column + t, count, scores.data() + r * kTile);
        if (fade == 1) continue;
        for (std::int64_t c = 0; c < value_ld; ++c)
          sums[static_cast<std::size_t>(r * value_ld + c)] *= fade;
      }
      load_tokens_impl(segment.values, t, count, tile.data(), value_ld);
      in_fours(task.rows, [&](std::int64_t row, auto rows) {
        add_values<rows()>(scores.data() + row * kTile, tile.data(), value_ld, count,
                           sums.data() + row * value_ld);
      });
    }
  }
  for (std::int64_t r = 0; r < task.rows; ++r) {
    std::copy_n(sums.data() + r * value_ld, task.value_dim, task.values + r * task.value_dim);
  }
}

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::kernels {

HWY_EXPORT(attend_impl);
HWY_EXPORT(load_tokens_impl);

void attend(const AttentionTask& task) { HWY_DYNAMIC_DISPATCH(attend_impl)(task); }

void load_tokens(const TokenSource& source, std::int64_t first, std::int64_t count, float* out,
                 std::int64_t ld) {
  HWY_DYNAMIC_DISPATCH(load_tokens_impl)(source, first, count, out, ld);
}

}  // namespace kvcache::kernels
#endif
