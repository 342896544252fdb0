// A view's segments as an operator takes them: a list of tensors, and a list of integers that says
// what they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/core/packed.h"
#include "kvcache/core/view.h"

namespace kvcache::detail {

struct SegmentLayout {
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> numbers;
};

SegmentLayout layout_of(const View& view);

// Keys or values of one segment.
struct SideLayout {
  bool packed = false;
  PackedFormat format = {};              // where packed
  at::Tensor data = {};                  // numbers or codes
  at::Tensor scales = {}, offsets = {};  // where packed
  std::vector<std::int64_t> valid = {};  // where packed: tokens of each group, see PackedStates

  std::int64_t tokens() const { return data.size(2); }
  std::int64_t dim() const { return packed ? format.head_dim : data.size(3); }
};

struct SegmentSides {
  SideLayout keys;
  SideLayout values;
};

// What layout_of() wrote down. Throws ValueError for lists that do not go together, and where there
// are no segments.
std::vector<SegmentSides> segments_of(at::TensorList parts, at::IntArrayRef numbers);

// Makes values and codes of a token adjoin, scales and offsets likewise with equal strides; copies
// only what does not.
void put_together(SideLayout& side);

// What an operator over segments was called with, beside them.
struct SegmentQuery {
  const at::Tensor& query;                // [batch, heads, tokens, key_dim]
  const std::optional<at::Tensor>& mask;  // bool [batch or 1, 1, tokens, columns]
};

// Throws ValueError for segments that do not go with each other or with the query in shape or
// device, and for a mask that does not fit.
void check_segments(const std::vector<SegmentSides>& segments, const SegmentQuery& given);

}  // namespace kvcache::detail
