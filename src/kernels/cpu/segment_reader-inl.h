// Keys or values of a segment, some tokens at a time, met by queries and by weights. Codes are
// never turned into what they stand for: scales and offsets apply to whole sums of them. Included
// by tiles.cpp once for each kind of vectors.

#if defined(KVCACHE_SEGMENT_READER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_SEGMENT_READER_INL_H
#undef KVCACHE_SEGMENT_READER_INL_H
#else
#define KVCACHE_SEGMENT_READER_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hwy/cache_control.h"
#include "kernels/cpu/token_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::kernels::HWY_NAMESPACE {

// More queries than this meet numbers: codes are then turned into float32 once for all of them.
constexpr std::int64_t kMostDirect = 8;

class SegmentReader {
 public:
  // Of `rows` queries or rows of weights.
  explicit SegmentReader(std::int64_t rows) : rows_(rows) {}

  // Turns to another source, whose first `tokens` tokens will be read.
  void open(const TokenSource& source, std::int64_t tokens) {
    source_ = source;
    tokens_ = tokens;
    group_ = -1;
    as_numbers_ = rows_ > kMostDirect && source.kind != TokenSource::Kind::float32;
    const bool coded = source.scales != nullptr && !as_numbers_;
    parameters_ = !coded ? Parameters::none
                         : (source.group_channels == 1 && source.dim > 1 ? Parameters::of_channels
                                                                         : Parameters::of_tokens);
    group_dim_ = parameters_ == Parameters::of_tokens ? std::min(source.group_channels, source.dim)
                                                      : source.dim;
    groups_ = (source.dim + group_dim_ - 1) / group_dim_;
    kind_ = as_numbers_ ? TokenSource::Kind::float32 : source.kind;
    bits_ = source.bits;
    const bool has_bits =
        kind_ == TokenSource::Kind::affine || kind_ == TokenSource::Kind::symmetric;
    as_bytes_ = has_bits && (bits_ == 3 || (groups_ > 1 && group_dim_ * bits_ % 8 != 0));
    if (as_bytes_) bits_ = 8;
    zero_ = kind_ == TokenSource::Kind::symmetric ? static_cast<float>(1 << (source.bits - 1)) : 0;
    set_order();
  }

  // Tokens from `first` on that can be read at once, at most `most`.
  std::int64_t at_once(std::int64_t first, std::int64_t most) const {
    if (parameters_ != Parameters::of_channels) return most;
    return std::min(most, source_.group_at(first).end - first);
  }

  // Turns to tokens [first, first + count) of those that can be read at once, at most kTile.
  void turn_to(std::int64_t first, std::int64_t count) {
    rows_at_ = {.data = source_.data + first * source_.stride,
                .end = source_.data + tokens_ * source_.stride,
                .stride = source_.stride,
                .count = count};
    fetch(first + count);
    if (as_numbers_) {
      numbers_.resize(static_cast<std::size_t>(kTile * source_.dim));
      load_tokens_impl(source_, first, count, numbers_.data(), source_.dim);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(numbers_.data());
      const auto size = static_cast<std::int64_t>(sizeof(float)) * source_.dim;
      rows_at_ = {.data = bytes, .end = bytes + count * size, .stride = size, .count = count};
    } else if (as_bytes_) {
      codes_.resize(static_cast<std::size_t>(kTile * source_.dim));
      for (std::int64_t t = 0; t < count; ++t) {
        spread(source_, rows_at_.data + t * source_.stride, codes_.data() + t * source_.dim);
      }
      rows_at_ = {.data = codes_.data(),
                  .end = codes_.data() + count * source_.dim,
                  .stride = source_.dim,
                  .count = count};
    }
    if (parameters_ == Parameters::of_tokens) load_token_parameters(first, count);
    if (parameters_ == Parameters::of_channels) load_channel_parameters(first);
  }

 protected:
  enum class Parameters {
    none,
    of_tokens,   // a scale and an offset for each token and group of channels
    of_channels  // ... for each channel, the same ones for all tokens that are read at once
  };

  Rows group_rows(std::int64_t group) const {
    Rows rows = rows_at_;
    const std::int64_t bits = bits_of_element();
    rows.data += group * group_dim_ * bits / 8;
    const std::int64_t dims = std::min(group_dim_, source_.dim - group * group_dim_);
    rows.elements = is_coded() ? (dims * bits + 7) / 8 : dims;
    return rows;
  }

  // `row`, [dim], in reading order: [ld()], with zeros between.
  void to_reading_order(const float* row, float* out) const {
    for (std::int64_t i = 0; i < ld(); ++i) {
      const std::int32_t channel = channels_[static_cast<std::size_t>(i)];
      out[i] = channel < 0 ? 0.0F : row[channel];
    }
  }

  template <typename Call>
  void with_reader(const Call& call) const {
    HWY_NAMESPACE::with_reader(kind_, bits_, call);
  }

  std::int64_t ld() const { return static_cast<std::int64_t>(channels_.size()); }
  std::int64_t group_ld() const { return ld() / groups_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t groups() const { return groups_; }
  std::int64_t count() const { return rows_at_.count; }
  Parameters parameters() const { return parameters_; }
  const std::vector<std::int32_t>& channels() const { return channels_; }
  bool has_offsets() const { return kind_ != TokenSource::Kind::float8; }

  // of_tokens: [kTile] of a group of channels; of_channels: [ld()] in reading order.
  const float* scales(std::int64_t group) const { return scales_.data() + group * kTile; }
  const float* offsets(std::int64_t group) const { return offsets_.data() + group * kTile; }

 private:
  bool is_coded() const {
    return kind_ == TokenSource::Kind::affine || kind_ == TokenSource::Kind::symmetric;
  }
  std::int64_t bits_of_element() const {
    if (is_coded()) return bits_;
    if (kind_ == TokenSource::Kind::float8) return 8;
    return kind_ == TokenSource::Kind::float32 ? 32 : 16;
  }

  // Lets the processor load what comes after this: a tile later it is wanted.
  void fetch(std::int64_t first) const {
    constexpr std::int64_t kLine = 64;  // bytes
    const std::int64_t count = std::min(kTile, tokens_ - first);
    const std::uint8_t* from = source_.data + first * source_.stride;
    for (std::int64_t at = 0; at < count * source_.stride; at += kLine) hwy::Prefetch(from + at);
  }

  // The channel of each place in reading order, or -1.
  void set_order() {
    const std::int64_t lanes = lane_count(), vectors = is_coded() ? 8 / bits_ : 1;
    const std::int64_t a_load = lanes * vectors, loads = (group_dim_ + a_load - 1) / a_load;
    channels_.resize(static_cast<std::size_t>(groups_ * loads * a_load));
    auto place = channels_.begin();
    for (std::int64_t group = 0; group < groups_; ++group) {
      const std::int64_t dims = std::min(group_dim_, source_.dim - group * group_dim_);
      for (std::int64_t load = 0; load < loads; ++load) {
        for (std::int64_t p = 0; p < vectors; ++p) {
          for (std::int64_t lane = 0; lane < lanes; ++lane) {
            const std::int64_t channel = (load * lanes + lane) * vectors + p;
            *place++ =
                channel < dims ? static_cast<std::int32_t>(group * group_dim_ + channel) : -1;
          }
        }
      }
    }
  }

  void load_token_parameters(std::int64_t first, std::int64_t count) {
    const auto size = static_cast<std::size_t>(groups_ * kTile);
    scales_.resize(size);
    offsets_.resize(size);
    if (source_.group_tokens == 1 && source_.group_ends == nullptr && groups_ == 1 &&
        source_.parameter_stride == source_.parameter_size()) {
      load_numbers(source_.scales + first * source_.parameter_stride, count, scales_.data());
      if (source_.offsets != nullptr) {
        load_numbers(source_.offsets + first * source_.parameter_stride, count, offsets_.data());
      }
    } else {
      GroupOfTokens group;
      for (std::int64_t t = 0; t < count; ++t) {
        if (first + t >= group.end) group = source_.group_at(first + t);
        for (std::int64_t g = 0; g < groups_; ++g) {
          const auto at = static_cast<std::size_t>(g * kTile + t);
          const std::int64_t row = group.index * source_.parameter_stride;
          scales_[at] = parameter(source_, source_.scales + row, g);
          if (source_.offsets != nullptr) {
            offsets_[at] = parameter(source_, source_.offsets + row, g);
          }
        }
      }
    }
    if (source_.offsets == nullptr && has_offsets()) {
      for (std::size_t i = 0; i < size; ++i) offsets_[i] = -zero_ * scales_[i];
    }
    for (std::int64_t g = 0; count < kTile && g < groups_; ++g) {  // finite, as zeros meet them
      std::fill_n(scales_.begin() + g * kTile + count, kTile - count, 0.0F);
      std::fill_n(offsets_.begin() + g * kTile + count, kTile - count, 0.0F);
    }
  }

  void load_numbers(const std::uint8_t* from, std::int64_t count, float* out) const {
    if (source_.half_parameters) return load_float16(from, count, out);
    std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
  }

  void load_channel_parameters(std::int64_t first) {
    const std::int64_t group = source_.group_at(first).index;
    if (group == group_) return;
    group_ = group;
    numbers_.resize(static_cast<std::size_t>(source_.dim));
    scales_.resize(channels_.size());
    offsets_.assign(channels_.size(), 0.0F);
    const std::int64_t row = group * source_.parameter_stride;
    load_numbers(source_.scales + row, source_.dim, numbers_.data());
    to_reading_order(numbers_.data(), scales_.data());
    if (source_.offsets != nullptr) {
      load_numbers(source_.offsets + row, source_.dim, numbers_.data());
      to_reading_order(numbers_.data(), offsets_.data());
    } else if (has_offsets()) {
      for (std::size_t i = 0; i < scales_.size(); ++i) offsets_[i] = -zero_ * scales_[i];
    }
  }

  std::int64_t rows_;
  TokenSource source_;
  std::int64_t tokens_ = 0, group_ = -1;
  bool as_numbers_ = false;  // tokens are turned into float32 before they are read
  bool as_bytes_ = false;    // codes are spread to bytes before they are read
  Parameters parameters_ = Parameters::none;
  std::int64_t group_dim_ = 1, groups_ = 1;  // of channels
  TokenSource::Kind kind_ = TokenSource::Kind::float32;
  int bits_ = 8;
  float zero_ = 0;
  Rows rows_at_;
  std::vector<std::int32_t> channels_;  // see set_order()
  std::vector<float> scales_, offsets_, numbers_;
  std::vector<std::uint8_t> codes_;
};

}  // namespace kvcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
