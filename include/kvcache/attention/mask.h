// Which query sees which key, in the cheapest form that says it: often no tensor at all.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/visible.h"

namespace kvcache {

struct AttentionMask {
  enum class Kind {
    none,    // every query sees every column
    causal,  // as many columns as queries, query i sees columns 0 .. i
    dense,   // `allowed` says it
  };
  Kind kind = Kind::none;
  at::Tensor allowed = {};  // bool [batch or 1, 1, tokens, columns], only where dense
};

struct MaskInput {
  Visible visible;               // the columns and their pattern
  std::int64_t seen = 0;         // position, in columns, of the first query
  std::int64_t tokens = 0;       // queries
  at::Device device = at::kCPU;  // where the mask is to lie
  // bool [batch, seen + tokens] on the CPU: false where a row holds padding. Absent: none does.
  std::optional<at::Tensor> valid = {};
};

// Windows count columns; chunks count from each row's first real token. A query that is padding
// sees itself alone, so that no row of the softmax is empty. Chunked layers under left padding see
// exactly what the row would see alone. Throws ValueError if the step's own tokens are not among
// the columns, or `valid` is not as MaskInput says.
AttentionMask make_mask(const MaskInput& input);

namespace detail {

// One row's padding, as make_mask needs it.
struct MaskRow {
  const bool* valid = nullptr;  // of positions 0 .. seen + tokens - 1; null: all real
  std::int64_t first_real = 0;  // where the row's chunks start to count
};

// Position of the first column that a real query at `position` sees.
inline std::int64_t first_seen(const Visible& visible, std::int64_t position,
                               std::int64_t first_real) {
  std::int64_t first = visible.offset;
  if (visible.window) first = std::max(first, position - *visible.window + 1);
  if (visible.chunk && position >= first_real) {
    first = std::max(first, position - (position - first_real) % *visible.chunk);
  }
  return first;
}

inline std::vector<MaskRow> mask_rows(const MaskInput& input) {
  if (!input.valid) return {MaskRow{}};
  const std::int64_t columns = input.seen + input.tokens;
  const at::Tensor& valid = *input.valid;
  check_value(valid.dim() == 2 && valid.size(1) == columns && valid.scalar_type() == at::kBool &&
                  valid.is_cpu() && valid.is_contiguous(),
              "the padding must be a contiguous bool tensor [batch, ", columns,
              "] on the CPU, but is ", dtype_name(valid), " ", valid.sizes(), " on ",
              valid.device());
  std::vector<MaskRow> rows;
  for (std::int64_t i = 0; i < valid.size(0); ++i) {
    const bool* row = valid.const_data_ptr<bool>() + i * columns;
    rows.push_back({row, std::find(row, row + columns, true) - row});
  }
  return rows;
}

// Whether no row has padding among the columns that the queries are handed.
inline bool all_visible_real(const MaskInput& input, const std::vector<MaskRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [&](const MaskRow& row) {
    const std::int64_t end = input.seen + input.tokens;
    return row.valid == nullptr ||
           std::all_of(row.valid + input.visible.offset, row.valid + end, [](bool v) { return v; });
  });
}

// Whether every query sees all columns up to its own.
inline bool sees_all_before(const MaskInput& input, const std::vector<MaskRow>& rows) {
  const std::int64_t last = input.seen + input.tokens - 1;  // sees the fewest early columns ...
  return std::all_of(rows.begin(), rows.end(), [&](const MaskRow& row) {
    // ... but under chunks, where it may be the first of one while an earlier query ends another.
    const std::int64_t from = input.visible.chunk ? input.seen : last;
    for (std::int64_t position = from; position <= last; ++position) {
      if (first_seen(input.visible, position, row.first_real) > input.visible.offset) return false;
    }
    return true;
  });
}

// Writes the columns that the query at `position` sees into `out`, which holds false.
inline void fill_mask_row(const Visible& visible, std::int64_t position, const MaskRow& row,
                          bool* out) {
  const auto at = [&](std::int64_t p) { return out + (p - visible.offset); };
  if (row.valid != nullptr && !row.valid[position]) {
    *at(position) = true;
    return;
  }
  const std::int64_t first = first_seen(visible, position, row.first_real);
  if (row.valid == nullptr) {
    std::fill(at(first), at(position + 1), true);
  } else {
    std::copy(row.valid + first, row.valid + position + 1, at(first));
  }
}

}  // namespace detail

inline AttentionMask make_mask(const MaskInput& input) {
  const Visible& visible = input.visible;
  const std::int64_t end = input.seen + input.tokens;
  check_value(
      input.tokens > 0 && visible.offset <= input.seen && visible.offset + visible.length >= end,
      "a mask for ", input.tokens, " queries from position ", input.seen,
      " on needs their own columns, but the ", visible.length, " columns start at ",
      visible.offset);
  std::vector<detail::MaskRow> rows = detail::mask_rows(input);
  if (detail::all_visible_real(input, rows)) {
    if (visible.offset + visible.length == end && detail::sees_all_before(input, rows)) {
      if (input.tokens == 1) return {AttentionMask::Kind::none};
      if (visible.offset == input.seen) return {AttentionMask::Kind::causal};
    }
    if (!visible.chunk) rows.resize(1);  // no row differs
  }
  const auto batch = static_cast<std::int64_t>(rows.size());
  const at::Tensor allowed = at::zeros({batch, 1, input.tokens, visible.length}, at::kBool);
  bool* out = allowed.data_ptr<bool>();
  for (const detail::MaskRow& row : rows) {
    for (std::int64_t position = input.seen; position < end; ++position, out += visible.length) {
      detail::fill_mask_row(visible, position, row, out);
    }
  }
  return {AttentionMask::Kind::dense, allowed.to(input.device)};
}

}  // namespace kvcache
