// Attention over a view: one dense segment through LibTorch's kernels, several by a running
// softmax. Grouped queries never copy keys or values per query head.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "kvcache/attention/detail/folded.h"
#include "kvcache/attention/mask.h"
#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/view.h"
#include "kvcache/kernels/segment_attention.h"

namespace kvcache {

struct AttentionOptions {
  double scale = 0;                    // factor on query-key products; 0: 1 / sqrt(key_dim)
  std::optional<double> softcap = {};  // scores become softcap * tanh(scores / softcap)
  // Added to the scores thereafter, e.g. for relative positions: [batch or 1, heads, tokens,
  // columns] in the query's dtype and on its device. Undefined: nothing.
  at::Tensor bias = {};
};

// query [batch, heads, tokens, key_dim], heads a multiple of the view's kv_heads;
// returns [batch, heads, tokens, value_dim] in the query's dtype. Throws ValueError for shapes that
// do not fit.
at::Tensor attention(const at::Tensor& query, const View& view, const AttentionMask& mask,
                     const AttentionOptions& options = {});

namespace detail {

// Up to so many rows (query heads of one KV head x tokens) folding them reads keys and values once
// for all of them, which is faster.
inline constexpr std::int64_t kFewRows = 32;

// Up to so many query tokens, those of a speculative step, the operator takes; longer chunks go
// through matrix products, tile by tile.
inline constexpr std::int64_t kFewTokens = 16;

inline void check_segment(const at::Tensor& query, const View& view, const Segment& segment) {
  const at::Tensor &keys = segment.keys, &values = segment.values;
  check_value(segment.packed ||
                  (keys.defined() && values.defined() && keys.dim() == 4 && values.dim() == 4),
              "a view's keys and values must be [batch, kv_heads, length, dim]");
  check_value(
      query.scalar_type() == segment.dtype() && query.size(3) == segment.key_dim() &&
          segment.kv_heads() > 0 && query.size(1) % segment.kv_heads() == 0,
      "a query ", dtype_name(query), " ", query.sizes(), " cannot attend to keys ",
      dtype_name(segment.dtype()), " ",
      at::IntArrayRef({segment.batch(), segment.kv_heads(), segment.length(), segment.key_dim()}),
      ": dtype and head size must be equal, heads a multiple of the key's");
  check_value(segment.batch() == 1 || segment.batch() == view.batch, "keys of batch ",
              segment.batch(), " must have batch 1 or the view's, ", view.batch);
  if (segment.packed) return;  // unpack() checks the rest
  check_value(keys.scalar_type() == values.scalar_type() &&
                  keys.sizes().slice(0, 3) == values.sizes().slice(0, 3),
              "keys ", dtype_name(keys), " ", keys.sizes(), " and values ", dtype_name(values), " ",
              values.sizes(), " must agree in dtype, batch, heads and length");
}

inline void check_bias(const at::Tensor& query, const View& view, const at::Tensor& bias) {
  if (!bias.defined()) return;
  check_value(bias.dim() == 4 && (bias.size(0) == 1 || bias.size(0) == view.batch) &&
                  bias.size(1) == query.size(1) && bias.size(2) == query.size(2) &&
                  bias.size(3) == view.visible.length && bias.scalar_type() == query.scalar_type(),
              "the bias must be ", dtype_name(query), " [", view.batch, " or 1, ", query.size(1),
              ", ", query.size(2), ", ", view.visible.length, "], but is ", dtype_name(bias), " ",
              bias.sizes());
}

inline void check_attention(const at::Tensor& query, const View& view, const AttentionMask& mask) {
  check_value(query.defined() && query.dim() == 4,
              "the query must be [batch, heads, tokens, "
              "key_dim], but is ",
              query.defined() ? c10::str(query.sizes()) : "undefined");
  check_value(!view.segments.empty() && query.size(0) == view.batch, "the query has batch ",
              query.size(0), ", but the view has batch ", view.batch, " and ", view.segments.size(),
              " segments");
  const std::int64_t columns = view.visible.length;
  std::int64_t held = 0;
  for (const Segment& segment : view.segments) {
    check_segment(query, view, segment);
    held += segment.length();
  }
  check_value(held == columns, "a view of ", columns, " visible tokens has segments of ", held);
  if (mask.kind == AttentionMask::Kind::causal) {
    check_value(columns == query.size(2), "a causal mask needs as many columns as queries, not ",
                columns, " and ", query.size(2));
  } else if (mask.kind == AttentionMask::Kind::dense) {
    const at::Tensor& allowed = mask.allowed;
    check_value(allowed.dim() == 4 && (allowed.size(0) == 1 || allowed.size(0) == view.batch) &&
                    allowed.size(1) == 1 && allowed.size(2) == query.size(2) &&
                    allowed.size(3) == columns,
                "the mask must be [", view.batch, " or 1, 1, ", query.size(2), ", ", columns,
                "], but is ", allowed.sizes());
  }
}

// What the fused kernels add to the scores, or which of them count (bool): [batch or 1, heads or 1,
// tokens, columns]. Absent: neither. A causal mask is said by a flag unless there is a bias.
inline std::optional<at::Tensor> kernel_mask(const at::Tensor& query, const AttentionMask& mask,
                                             const at::Tensor& bias) {
  if (!bias.defined()) {
    if (mask.kind == AttentionMask::Kind::dense) return mask.allowed;
    return std::nullopt;
  }
  const auto hidden = hidden_columns(mask, query.size(2), {0, bias.size(3)}, query.device());
  if (!hidden) return bias;
  return bias.masked_fill(*hidden, -std::numeric_limits<double>::infinity());
}

// One dense segment, by LibTorch's fused kernel: scores and softmax in float32.
inline at::Tensor fused_attention(const at::Tensor& query, const KeyValue& states,
                                  const AttentionMask& mask, const ScoreOptions& options) {
  const std::int64_t batch = query.size(0), heads = query.size(1), tokens = query.size(2);
  const std::int64_t kv_heads = states.keys.size(1), group = heads / kv_heads;
  const bool causal =
      mask.kind == AttentionMask::Kind::causal && tokens > 1 && !options.bias.defined();
  std::optional<at::Tensor> added = kernel_mask(query, mask, options.bias);
  const auto attend = [&](const at::Tensor& rows, bool grouped) {
    return at::scaled_dot_product_attention(rows, states.keys, states.values, added,
                                            /*dropout_p=*/0.0, causal, options.scale, grouped);
  };
  if (group == 1) return attend(query, false);
  if (causal || group * tokens > kFewRows) return attend(query, true);
  if (added && added->size(1) == heads) {
    added = fold_heads(*added, kv_heads);
  } else if (added && tokens > 1) {
    added = added->repeat({1, 1, group, 1});
  }
  return attend(fold_heads(query, kv_heads), false).reshape({batch, heads, tokens, -1});
}

// The compiled library's operator, for a few queries over segments that LibTorch's kernels cannot
// read where they lie. Absent: it is not linked, or no use.
inline std::optional<at::Tensor> by_operator(const at::Tensor& query, const View& view,
                                             const AttentionMask& mask,
                                             const ScoreOptions& options) {
#if defined(KVCACHE_COMPILED_CORE)
  const Segment& first = view.segments.front();
  const bool in_pieces = view.segments.size() > 1 || first.packed;
  const bool any_rotated =
      std::any_of(view.segments.begin(), view.segments.end(), [](const Segment& segment) {
        return segment.packed && segment.packed->values.format.rotated;
      });
  if (!in_pieces || any_rotated || query.size(2) > kFewTokens ||
      query.scalar_type() == at::kDouble || query.size(3) > kMostHeadDim ||
      first.value_dim() > kMostHeadDim || options.bias.defined() ||
      mask.kind == AttentionMask::Kind::causal || !has_segment_attention(query.device())) {
    return std::nullopt;
  }
  std::optional<at::Tensor> allowed;
  if (mask.kind == AttentionMask::Kind::dense) allowed = mask.allowed;
  return segment_attention(
      query, view, {.scale = options.scale, .softcap = options.softcap, .allowed = allowed});
#else
  static_cast<void>(query), static_cast<void>(view), static_cast<void>(mask);
  static_cast<void>(options);
  return std::nullopt;
#endif
}

}  // namespace detail

inline at::Tensor attention(const at::Tensor& query, const View& view, const AttentionMask& mask,
                            const AttentionOptions& options) {
  detail::check_attention(query, view, mask);
  detail::check_bias(query, view, options.bias);
  const Segment& first = view.segments.front();
  const std::int64_t key_dim = query.size(3);
  const detail::ScoreOptions score{
      .scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(key_dim)),
      .softcap = options.softcap,
      .bias = options.bias};
  if (auto result = detail::by_operator(query, view, mask, score)) return *result;
  if (view.segments.size() > 1 || first.packed)
    return detail::segmented_attention(query, view, mask, score);
  // The fused kernels know no soft cap and only equal head sizes.
  if (options.softcap || first.values.size(3) != key_dim) {
    return detail::folded_attention(query, first, mask, score);
  }
  return detail::fused_attention(query, dense(view), mask, score);
}

}  // namespace kvcache
