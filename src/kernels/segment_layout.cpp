#include "kernels/segment_layout.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "kvcache/core/errors.h"
#include "kvcache/core/packing.h"
#include "kvcache/kernels/segment_attention.h"

namespace kvcache::detail {
namespace {

// Per side: packed, then of a packed one its format and the tokens of each group.
void write_down(const PackedStates& states, SegmentLayout& layout) {
  const PackedFormat& format = states.format;
  layout.numbers.insert(layout.numbers.end(),
                        {1, static_cast<std::int64_t>(format.kind), format.bits, format.head_dim,
                         format.group_channels, format.group_tokens, format.rotated ? 1 : 0,
                         static_cast<std::int64_t>(states.valid.size())});
  layout.numbers.insert(layout.numbers.end(), states.valid.begin(), states.valid.end());
  layout.parts.insert(
      layout.parts.end(),
      {states.codes, states.scales,
       states.offsets.defined() ? states.offsets : at::empty({0}, states.scales.options())});
}

class Reader {
 public:
  Reader(at::TensorList parts, at::IntArrayRef numbers) : parts_(parts), numbers_(numbers) {}

  bool at_end() const { return next_number_ == numbers_.size() && next_part_ == parts_.size(); }

  SideLayout side() {
    SideLayout side{.packed = number() == 1};
    if (!side.packed) {
      side.data = part();
      return side;
    }
    side.format.kind = static_cast<PackedFormat::Kind>(
        number_between(0, static_cast<std::int64_t>(PackedFormat::Kind::symmetric), "a kind"));
    side.format.bits = number();
    check_bits(side.format.bits);
    side.format.head_dim = number_between(1, kMostHeadDim, "a head size");
    side.format.group_channels = number_between(1, side.format.head_dim, "channels of a group");
    side.format.group_tokens = number_between(1, kMostTokens, "tokens of a group");
    side.format.rotated = number() == 1;
    const std::int64_t valid = number();
    for (std::int64_t group = 0; group < valid; ++group) {
      side.valid.push_back(number_between(0, side.format.group_tokens, "tokens of a group"));
    }
    side.data = part();
    side.scales = part();
    side.offsets = part();
    side.format.parameter_dtype = side.scales.scalar_type();
    check_packed({side.format, side.data, side.scales, side.offsets, side.valid});
    return side;
  }

 private:
  std::int64_t number() {
    check_value(next_number_ < numbers_.size(), "a list of segments ends early");
    return numbers_[next_number_++];
  }
  std::int64_t number_between(std::int64_t least, std::int64_t most, const char* name) {
    const std::int64_t found = number();
    check_value(found >= least && found <= most, name, " of packed keys or values is ", found,
                "; it must be from ", least, " to ", most);
    return found;
  }
  at::Tensor part() {
    check_value(next_part_ < parts_.size(), "a list of segments lacks a tensor");
    return parts_[next_part_++];
  }

  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

  at::TensorList parts_;
  at::IntArrayRef numbers_;
  std::size_t next_number_ = 0, next_part_ = 0;
};

}  // namespace

SegmentLayout layout_of(const View& view) {
  SegmentLayout layout;
  for (const Segment& segment : view.segments) {
    if (segment.length() == 0) continue;
    if (segment.packed) {
      write_down(segment.packed->keys, layout);
      write_down(segment.packed->values, layout);
    } else {
      layout.numbers.insert(layout.numbers.end(), {0, 0});
      layout.parts.insert(layout.parts.end(), {segment.keys, segment.values});
    }
  }
  return layout;
}

std::vector<SegmentSides> segments_of(at::TensorList parts, at::IntArrayRef numbers) {
  std::vector<SegmentSides> segments;
  Reader reader(parts, numbers);
  while (!reader.at_end()) {
    SegmentSides sides;
    sides.keys = reader.side();
    sides.values = reader.side();
    segments.push_back(std::move(sides));
  }
  check_value(!segments.empty(), "there are no segments to attend to");
  return segments;
}

void put_together(SideLayout& side) {
  for (at::Tensor* t : {&side.data, &side.scales, &side.offsets}) {
    if (t->defined() && t->numel() > 0 && t->stride(-1) != 1) *t = t->contiguous();
  }
  if (!side.packed || !side.format.has_offsets()) return;
  if (side.scales.strides() != side.offsets.strides()) {
    side.scales = side.scales.contiguous();
    side.offsets = side.offsets.contiguous();
  }
}

void check_segments(const std::vector<SegmentSides>& segments, const SegmentQuery& given) {
  const at::Tensor& query = given.query;
  check_value(query.dim() == 4, "the query must be [batch, heads, tokens, key_dim], but is ",
              query.sizes());
  const std::int64_t batch = query.size(0), heads = segments[0].keys.data.size(1);
  check_value(heads > 0 && query.size(1) % heads == 0, query.size(1), " query heads cannot share ",
              heads, " KV heads");
  std::int64_t columns = 0;
  for (const SegmentSides& each : segments) {
    for (const SideLayout* side : {&each.keys, &each.values}) {
      const at::Tensor& data = side->data;
      check_value(data.dim() == 4 && (data.size(0) == batch || data.size(0) == 1) &&
                      data.size(1) == heads && side->tokens() == each.keys.tokens(),
                  "keys and values of a segment must be [", batch, " or 1, ", heads, ", ",
                  each.keys.tokens(), ", dim], but are ", data.sizes());
      for (const at::Tensor* t : {&data, &side->scales, &side->offsets}) {
        check_value(!t->defined() || t->device() == query.device(), "a segment lies on ",
                    t->defined() ? t->device() : query.device(), ", the query on ", query.device());
      }
    }
    check_value(!each.values.format.rotated, "rotated values cannot be read as they are packed");
    check_value(query.size(3) <= kMostHeadDim && each.values.dim() <= kMostHeadDim,
                "attention over segments takes heads of up to ", kMostHeadDim, " numbers, not ",
                query.size(3), " and ", each.values.dim());
    check_value(each.keys.dim() == query.size(3) && each.values.dim() == segments[0].values.dim(),
                "head sizes must be equal over all segments, and those of keys the query's");
    columns += each.keys.tokens();
  }
  if (!given.mask) return;
  const at::Tensor& mask = *given.mask;
  check_value(mask.scalar_type() == at::kBool && mask.dim() == 4 &&
                  (mask.size(0) == batch || mask.size(0) == 1) && mask.size(1) == 1 &&
                  mask.size(2) == query.size(2) && mask.size(3) == columns &&
                  mask.device() == query.device(),
              "the mask must be bool [", batch, " or 1, 1, ", query.size(2), ", ", columns,
              "] on the query's device, but is ", mask.scalar_type(), " ", mask.sizes(), " on ",
              mask.device());
}

}  // namespace kvcache::detail
