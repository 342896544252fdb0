// Scores of a segment's keys.
// Included by tiles.cpp once for each kind of vectors.

#if defined(KVCACHE_KEY_READER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_KEY_READER_INL_H
#undef KVCACHE_KEY_READER_INL_H
#else
#define KVCACHE_KEY_READER_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu/segment_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

class KeyReader : public SegmentReader {
 public:
  using SegmentReader::SegmentReader;

  // `query`: [rows, dim]
  void open(const TokenSource& source, std::int64_t tokens, const float* query) {
    SegmentReader::open(source, tokens);
    query_.resize(static_cast<std::size_t>(rows() * ld()));
    for (std::int64_t r = 0; r < rows(); ++r) {
      to_reading_order(query + r * source.dim, query_.data() + r * ld());
    }
    if (parameters() == Parameters::of_tokens) {
      sums_.resize(static_cast<std::size_t>(rows() * groups()));
      const float* of_group = query_.data();
      for (float& sum : sums_) {
        sum = std::accumulate(of_group, of_group + group_ld(), 0.0F);
        of_group += group_ld();
      }
    }
  }

  // Scores of the tokens turned to: [rows, kTile].
  void score(float* scores) {
    const float* query = query_.data();
    if (parameters() == Parameters::of_channels) query = scaled_query();
    with_reader([&](auto reader) {
      in_fours(rows(), [&](std::int64_t row, auto some) {
        for (std::int64_t g = 0; g < groups(); ++g) {
          const bool alone = parameters() != Parameters::of_tokens;
          HWY_ALIGN float dots[4 * kTile];
          float* out = scores + row * kTile;
          dot_products<decltype(reader), some()>(group_rows(g), query + row * ld() + g * group_ld(),
                                                 ld(), alone ? out : dots);
          for (std::int64_t r = 0; !alone && r < some(); ++r) {
            add_scaled(dots + r * kTile, g, row + r, out + r * kTile);
          }
        }
      });
    });
    if (parameters() == Parameters::of_channels) add_constants(scores);
  }

 private:
  // scores (+)= dots * scales + (sum of the query) * offsets
  void add_scaled(const float* dots, std::int64_t group, std::int64_t row, float* scores) const {
    const Floats d;
    const float sum = sums_[static_cast<std::size_t>(row * groups() + group)];
    const auto of_query = hn::Set(d, has_offsets() ? sum : 0.0F);
    for (std::int64_t t = 0; t < count(); t += lane_count()) {
      auto score = hn::Mul(hn::LoadU(d, dots + t), hn::LoadU(d, scales(group) + t));
      if (has_offsets()) score = hn::MulAdd(of_query, hn::LoadU(d, offsets(group) + t), score);
      if (group > 0) score = hn::Add(score, hn::LoadU(d, scores + t));
      hn::StoreU(score, d, scores + t);
    }
  }

  // Of the group of tokens: the query times its scales, and the query's products with its offsets.
  const float* scaled_query() {
    const Floats d;
    scaled_.resize(query_.size());
    sums_.resize(static_cast<std::size_t>(rows()));
    for (std::int64_t r = 0; r < rows(); ++r) {
      const float* query = query_.data() + r * ld();
      auto sum = hn::Zero(d);
      for (std::int64_t i = 0; i < ld(); i += lane_count()) {
        const auto q = hn::LoadU(d, query + i);
        hn::StoreU(hn::Mul(q, hn::LoadU(d, scales(0) + i)), d, scaled_.data() + r * ld() + i);
        sum = hn::MulAdd(q, hn::LoadU(d, offsets(0) + i), sum);
      }
      sums_[static_cast<std::size_t>(r)] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
    return scaled_.data();
  }

  void add_constants(float* scores) const {
    const Floats d;
    for (std::int64_t r = 0; r < rows(); ++r) {
      const auto constant = hn::Set(d, sums_[static_cast<std::size_t>(r)]);
      for (std::int64_t t = 0; t < count(); t += lane_count()) {
        float* score = scores + r * kTile + t;
        hn::StoreU(hn::Add(hn::LoadU(d, score), constant), d, score);
      }
    }
  }

  std::vector<float> query_;   // [rows, ld()]
  std::vector<float> scaled_;  // likewise
  // of_tokens: of each query's group of channels; of_channels: see scaled_query().
  std::vector<float> sums_;
};

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
