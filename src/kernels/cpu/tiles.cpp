// See tiles.h. Compiled once for each kind of vectors (Highway).
#include "kernels/cpu/tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tiles.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After it:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/key_reader-inl.h"
#include "kernels/cpu/value_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

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
  const std::int64_t padded = (count + lanes - 1) / lanes * lanes;
  std::fill(scores + count, scores + padded, kNothing);
  auto most = hn::Set(d, task.maxima[row]);
  for (std::int64_t t = 0; t < padded; t += lanes) most = hn::Max(most, hn::LoadU(d, scores + t));
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, most));
  if (maximum == kNothing) {
    std::fill(scores, scores + padded, 0.0F);
    return 1;
  }
  auto sum = hn::Zero(d);
  const auto base = hn::Set(d, maximum);
  for (std::int64_t t = 0; t < padded; t += lanes) {
    const auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), base));
    hn::StoreU(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  const float fade = task.maxima[row] == maximum ? 1.0F : std::exp(task.maxima[row] - maximum);
  task.sums[row] = task.sums[row] * fade + hn::GetLane(hn::SumOfLanes(d, sum));
  task.maxima[row] = maximum;
  return fade;
}

void attend_impl(const AttentionTask& task) {
  KeyReader keys(task.rows);
  ValueReader values(task.rows);
  std::vector<float> scores(static_cast<std::size_t>(task.rows * kTile));
  std::fill_n(task.values, task.rows * task.value_dim, 0.0F);
  std::fill_n(task.sums, task.rows, 0.0F);
  std::fill_n(task.maxima, task.rows, -std::numeric_limits<float>::infinity());
  for (std::int64_t s = 0; s < task.segment_count; ++s) {
    const SegmentSource& segment = task.segments[s];
    const std::int64_t end = std::min(task.end - segment.column, segment.tokens);
    std::int64_t t = std::max<std::int64_t>(task.first - segment.column, 0);
    if (t >= end) continue;
    keys.open(segment.keys, segment.tokens, segment.rotated ? task.rotated_query : task.query);
    values.open(segment.values, segment.tokens);
    while (t < end) {
      const std::int64_t count = values.at_once(t, keys.at_once(t, std::min(kTile, end - t)));
      keys.turn_to(t, count);
      keys.score(scores.data());
      for (std::int64_t r = 0; r < task.rows; ++r) {
        const float fade = weigh(task, r, segment.column + t, count, scores.data() + r * kTile);
        if (fade == 1) continue;
        values.fade(r, fade);
        float* row = task.values + r * task.value_dim;
        std::for_each(row, row + task.value_dim, [&](float& value) { value *= fade; });
      }
      values.turn_to(t, count);
      values.add(scores.data());
      t += count;
    }
    values.finish(task.value_dim, task.values);
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
