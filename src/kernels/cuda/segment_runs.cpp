#include "kernels/cuda/segment_runs.h"

#include <algorithm>
#include <cstddef>

#include "kvcache/core/errors.h"

namespace kvcache::kernels::cuda {
namespace {

using detail::SegmentSides;
using detail::SideLayout;

const std::uint8_t* bytes_of(const at::Tensor& t) {
  return static_cast<const std::uint8_t*>(t.const_data_ptr());
}

// Bytes from one to the next; 0 where there is one row that all share.
std::int64_t step_of(const at::Tensor& t, std::int64_t dim) {
  return dim == 0 && t.size(0) == 1 ? 0 : t.stride(dim) * t.element_size();
}

void describe_codes(const SideLayout& side, TokenSource& source) {
  const PackedFormat& format = side.format;
  source.bits = static_cast<std::int8_t>(format.bits);
  source.group_channels = static_cast<std::int32_t>(format.group_channels);
  source.group_tokens = static_cast<std::int32_t>(format.group_tokens);
  source.parameters = number_of(format.parameter_dtype);
  source.rotated = format.rotated;
  source.scales = bytes_of(side.scales);
  source.parameter_row = step_of(side.scales, 0);
  source.parameter_head = step_of(side.scales, 1);
  source.parameter_group = step_of(side.scales, 2);
  switch (format.kind) {
    case PackedFormat::Kind::affine:
      source.kind = TokenSource::Kind::affine;
      source.offsets = bytes_of(side.offsets);
      return;
    case PackedFormat::Kind::symmetric:
      source.kind = TokenSource::Kind::symmetric;
      return;
    case PackedFormat::Kind::float8:
      source.kind = TokenSource::Kind::float8;
      return;
  }
  throw ValueError(
      c10::str("attention over segments knows no packed format ", static_cast<int>(format.kind)));
}

TokenSource source_of(const SideLayout& side) {
  TokenSource source{.data = bytes_of(side.data),
                     .row = step_of(side.data, 0),
                     .head = step_of(side.data, 1),
                     .token = step_of(side.data, 2),
                     .dim = static_cast<std::int32_t>(side.dim())};
  if (side.packed) {
    describe_codes(side, source);
  } else {
    source.kind = TokenSource::Kind::dense;
    source.number = number_of(side.data.scalar_type());
  }
  return source;
}

// Walks over the tokens of one side, run by run.
class Cursor {
 public:
  explicit Cursor(const SideLayout& side)
      : valid_(side.valid),
        unit_(side.packed ? side.format.group_tokens : 1),
        left_(side.tokens()),
        source_(source_of(side)) {
    skip_empty_groups();
  }

  // Tokens from here on whose groups are full but for the first and the last.
  std::int64_t run() const {
    if (valid_.empty() || left_ == 0) return left_;
    std::int64_t tokens = group_left();
    for (std::size_t group = group_ + 1; group < valid_.size(); ++group) {
      tokens += valid_[group];
      if (valid_[group] < unit_) break;
    }
    return tokens;
  }

  TokenSource source() const {
    TokenSource source = source_;
    source.lead = static_cast<std::int32_t>(group_left());
    return source;
  }

  void advance(std::int64_t tokens) {
    left_ -= tokens;
    source_.data += tokens * source_.token;
    if (valid_.empty()) {
      skip_groups((used_ + tokens) / unit_);
      used_ = (used_ + tokens) % unit_;
      return;
    }
    while (tokens > 0) {
      const std::int64_t taken = std::min(group_left(), tokens);
      used_ += taken;
      tokens -= taken;
      skip_empty_groups();
    }
  }

 private:
  std::int64_t group_left() const { return (valid_.empty() ? unit_ : valid_[group_]) - used_; }

  void skip_groups(std::int64_t count) {
    source_.scales += count * source_.parameter_group;
    if (source_.offsets != nullptr) source_.offsets += count * source_.parameter_group;
  }

  // Those that hold nothing, or nothing more.
  void skip_empty_groups() {
    while (group_ < valid_.size() && group_left() == 0) {
      skip_groups(1);
      ++group_;
      used_ = 0;
    }
  }

  const std::vector<std::int64_t>& valid_;  // tokens of each group; empty: all groups are full
  std::int64_t unit_;                       // tokens of a full group
  std::int64_t left_;                       // tokens from here on
  TokenSource source_;                      // from here on
  std::size_t group_ = 0;                   // of valid_
  std::int64_t used_ = 0;                   // tokens of the group that lie before
};

// Gives each launch its columns and splits.
void divide(Launches& launches) {
  const std::int64_t split_length = split_length_of(launches.columns);
  for (Segments& launch : launches.each) {
    const Segment& last = launch.each[launch.count - 1];
    launch.first = launch.each[0].column;
    launch.end = last.column + last.tokens;
    launch.split_length = split_length;
    launch.first_split = launches.splits;
    launches.splits += splits_of(launch.end - launch.first, split_length);
  }
}

}  // namespace

Number number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Number::float32;
    case at::kBFloat16:
      return Number::bfloat16;
    case at::kHalf:
      return Number::float16;
    default:
      throw ValueError(
          c10::str("attention over segments takes float32, bfloat16 and float16, not ", dtype));
  }
}

Launches launches_of(const std::vector<SegmentSides>& segments) {
  Launches launches;
  for (const SegmentSides& each : segments) {
    Cursor keys(each.keys), values(each.values);
    for (std::int64_t left = each.keys.tokens(); left > 0;) {
      const std::int64_t tokens = std::min(keys.run(), values.run());
      if (launches.each.empty() || launches.each.back().count == kSegmentsOfALaunch) {
        launches.each.emplace_back();
      }
      Segments& launch = launches.each.back();
      launch.each[launch.count++] = {.keys = keys.source(),
                                     .values = values.source(),
                                     .tokens = tokens,
                                     .column = launches.columns};
      launches.columns += tokens;
      left -= tokens;
      keys.advance(tokens);
      values.advance(tokens);
    }
  }
  check_value(launches.columns > 0, "there are no tokens to attend to");
  divide(launches);
  return launches;
}

}  // namespace kvcache::kernels::cuda
