// Weighted sums of a segment's values.
// Included by tiles.cpp once for each kind of vectors.

#if defined(KVCACHE_VALUE_READER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_VALUE_READER_INL_H
#undef KVCACHE_VALUE_READER_INL_H
#else
#define KVCACHE_VALUE_READER_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/segment_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

class ValueReader : public SegmentReader {
 public:
  using SegmentReader::SegmentReader;

  void open(const TokenSource& source, std::int64_t tokens) {
    SegmentReader::open(source, tokens);
    sums_.assign(static_cast<std::size_t>(rows() * ld()), 0.0F);
    constants_.assign(static_cast<std::size_t>(rows() * groups()), 0.0F);
  }

  // What was added so far counts for `factor` of what it did, in one row.
  void fade(std::int64_t row, float factor) {
    for (std::int64_t i = 0; i < ld(); ++i)
      sums_[static_cast<std::size_t>(row * ld() + i)] *= factor;
    for (std::int64_t g = 0; g < groups(); ++g) {
      constants_[static_cast<std::size_t>(row * groups() + g)] *= factor;
    }
  }

  // Adds the tokens turned to, times `weights` [rows, kTile]: zeros up to a whole vector of tokens.
  void add(const float* weights) {
    float* sums = sums_.data();
    if (parameters() == Parameters::of_channels) {
      code_sums_.assign(sums_.size(), 0.0F);
      sums = code_sums_.data();
    }
    with_reader([&](auto reader) {
      in_fours(rows(), [&](std::int64_t row, auto some) {
        for (std::int64_t g = 0; g < groups(); ++g) {
          HWY_ALIGN float scaled[4 * kTile];
          const float* own = weights + row * kTile;
          if (parameters() == Parameters::of_tokens) {
            for (std::int64_t r = 0; r < some(); ++r) {
              scale_weights(own + r * kTile, g, row + r, scaled + r * kTile);
            }
            own = scaled;
          }
          add_weighted<decltype(reader), some()>(group_rows(g), own,
                                                 sums + row * ld() + g * group_ld(), ld());
        }
      });
    });
    if (parameters() == Parameters::of_channels) add_code_sums(weights);
  }

  // Adds all that was added to `out`, [rows, dim].
  void finish(std::int64_t dim, float* out) const {
    const std::int64_t places = group_ld();
    for (std::int64_t r = 0; r < rows(); ++r) {
      const float* sums = sums_.data() + r * ld();
      const std::int32_t* channel = channels().data();
      for (std::int64_t g = 0; g < groups(); ++g) {
        const float constant = constants_[static_cast<std::size_t>(r * groups() + g)];
        for (std::int64_t i = 0; i < places; ++i, ++channel, ++sums) {
          if (*channel >= 0) out[r * dim + *channel] += *sums + constant;
        }
      }
    }
  }

 private:
  // Times each token's scale; its offset goes to all channels of the group.
  void scale_weights(const float* weights, std::int64_t group, std::int64_t row, float* out) {
    const Floats d;
    auto constant = hn::Zero(d);
    for (std::int64_t t = 0; t < count(); t += lane_count()) {
      const auto weight = hn::LoadU(d, weights + t);
      hn::StoreU(hn::Mul(weight, hn::LoadU(d, scales(group) + t)), d, out + t);
      if (has_offsets()) constant = hn::MulAdd(weight, hn::LoadU(d, offsets(group) + t), constant);
    }
    constants_[static_cast<std::size_t>(row * groups() + group)] +=
        hn::GetLane(hn::SumOfLanes(d, constant));
  }

  void add_code_sums(const float* weights) {
    const Floats d;
    for (std::int64_t r = 0; r < rows(); ++r) {
      auto total = hn::Zero(d);
      for (std::int64_t t = 0; t < count(); t += lane_count()) {
        total = hn::Add(total, hn::LoadU(d, weights + r * kTile + t));
      }
      const auto weight = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, total)));
      for (std::int64_t i = 0; i < ld(); i += lane_count()) {
        float* sum = sums_.data() + r * ld() + i;
        const auto codes = hn::LoadU(d, code_sums_.data() + r * ld() + i);
        auto value = hn::MulAdd(codes, hn::LoadU(d, scales(0) + i), hn::LoadU(d, sum));
        value = hn::MulAdd(weight, hn::LoadU(d, offsets(0) + i), value);
        hn::StoreU(value, d, sum);
      }
    }
  }

  std::vector<float> sums_;       // [rows, ld()]
  std::vector<float> constants_;  // [rows, groups()]
  std::vector<float> code_sums_;  // [rows, ld()]
};

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
