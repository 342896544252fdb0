// Attention in plain matrix products. The query heads that share a KV head are folded into the rows
// of one product, so keys and values are read once and never repeated.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "kvcache/attention/mask.h"
#include "kvcache/core/view.h"

namespace kvcache::detail {

struct ScoreOptions {
  double scale;
  std::optional<double> softcap;
  at::Tensor bias =
      {};  // [batch or 1, heads, tokens, columns], added to the scores; may be undefined
};

// [batch, heads, tokens, dim] -> [batch, kv_heads, group * tokens, dim]
inline at::Tensor fold_heads(const at::Tensor& query, std::int64_t kv_heads) {
  const std::int64_t group = query.size(1) / kv_heads;
  return query.reshape({query.size(0), kv_heads, group * query.size(2), query.size(3)});
}

// factor * rows [batch, kv_heads, n, k] * right [batch or 1, kv_heads, k, m], as [batch, kv_heads,
// n, m]; the factor is applied before rounding to the dtype. A right side shared by all rows is
// read once.
inline at::Tensor product(const at::Tensor& rows, const at::Tensor& right, double factor = 1) {
  const std::int64_t batch = rows.size(0), heads = rows.size(1), n = rows.size(2);
  const std::int64_t k = right.size(2), m = right.size(3);
  if (right.size(0) == batch) {
    const at::Tensor result = at::empty({batch * heads, n, m}, rows.options());
    result.baddbmm_(rows.reshape({batch * heads, n, k}), right.reshape({batch * heads, k, m}),
                    /*beta=*/0, factor);
    return result.view({batch, heads, n, m});
  }
  const at::Tensor result = at::empty({heads, batch * n, m}, rows.options());
  result.baddbmm_(rows.transpose(0, 1).reshape({heads, batch * n, k}), right.squeeze(0),
                  /*beta=*/0, factor);
  return result.view({heads, batch, n, m}).transpose(0, 1);
}

// Scores [batch, kv_heads, group * tokens, columns] of a folded query with keys of some of a view's
// columns: scaled, capped and biased.
inline at::Tensor scores_of(const at::Tensor& folded, const at::Tensor& keys, Range columns,
                            const ScoreOptions& options) {
  at::Tensor scores = product(folded, keys.transpose(2, 3), options.scale);
  if (options.softcap) scores.div_(*options.softcap).tanh_().mul_(*options.softcap);
  if (options.bias.defined()) {
    scores.add_(fold_heads(options.bias.narrow(3, columns.first, columns.length()), keys.size(1)));
  }
  return scores;
}

// Columns [first, first + count) of what may not be seen: bool [batch or 1, 1, tokens, count];
// absent where all may be.
inline std::optional<at::Tensor> hidden_columns(const AttentionMask& mask, std::int64_t tokens,
                                                Range columns, at::Device device) {
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(3, columns.first, columns.length());
  };
  if (mask.kind == AttentionMask::Kind::dense) return part(mask.allowed).logical_not();
  if (mask.kind == AttentionMask::Kind::none || tokens == 1) return std::nullopt;
  const auto options = at::TensorOptions().dtype(at::kBool).device(device);
  return part(at::ones({1, 1, tokens, tokens}, options).triu(1));
}

// Sets the scores that a folded query may not see to -infinity, in place.
inline void hide(const at::Tensor& scores, const std::optional<at::Tensor>& hidden) {
  if (!hidden) return;
  const std::int64_t tokens = hidden->size(2);
  scores.view({scores.size(0), scores.size(1), scores.size(2) / tokens, tokens, scores.size(3)})
      .masked_fill_(hidden->unsqueeze(1), -std::numeric_limits<double>::infinity());
}

// One dense segment. The softmax runs in float32 whatever the dtype (within ATen's kernel).
inline at::Tensor folded_attention(const at::Tensor& query, const Segment& segment,
                                   const AttentionMask& mask, const ScoreOptions& options) {
  const std::int64_t tokens = query.size(2);
  const at::Tensor folded = fold_heads(query, segment.keys.size(1));
  const Range columns{0, segment.length()};
  const at::Tensor scores = scores_of(folded, segment.keys, columns, options);
  hide(scores, hidden_columns(mask, tokens, columns, query.device()));
  return product(at::softmax(scores, -1), segment.values)
      .reshape({query.size(0), query.size(1), tokens, segment.values.size(3)});
}

// Tokens of a segment that are read at a time where they are packed or queries are many, and
// queries that are computed at a time: what bounds the memory for scores.
inline constexpr std::int64_t kTile = 512;

// Up to kTile queries over any number of segments, each read where it lies: a softmax whose maximum
// and sum run along (https://arxiv.org/abs/1805.02867), in float32.
inline at::Tensor tile_of_segmented_attention(const at::Tensor& query, const View& view,
                                              const AttentionMask& mask,
                                              const ScoreOptions& options) {
  const at::ScalarType dtype = query.scalar_type();
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const Segment& front = view.segments.front();
  const at::Tensor folded = fold_heads(query, front.kv_heads());
  const std::int64_t batch = folded.size(0), heads = folded.size(1), rows = folded.size(2);
  const auto wide_options = query.options().dtype(wide);
  const at::Tensor sum = at::zeros({batch, heads, rows, 1}, wide_options);
  const at::Tensor result = at::zeros({batch, heads, rows, front.value_dim()}, wide_options);
  // Finite, so that a segment of which a row sees nothing gives exp(-inf) = 0 and no NaN.
  at::Tensor maximum = at::full_like(sum, std::numeric_limits<float>::lowest());
  for (const Segment& segment : view.segments) {
    const std::int64_t tile =
        segment.packed || rows > kTile ? kTile : std::max<std::int64_t>(segment.length(), 1);
    for (std::int64_t done = 0; done < segment.length(); done += tile) {
      const std::int64_t length = std::min(tile, segment.length() - done);
      const KeyValue states = dense(segment, done, length);
      const std::int64_t first = segment.first + done - view.visible.offset;
      const Range columns{first, first + length};
      const at::Tensor scores = scores_of(folded, states.keys, columns, options).to(wide);
      hide(scores, hidden_columns(mask, query.size(2), columns, query.device()));
      const at::Tensor higher = at::maximum(maximum, scores.amax(-1, /*keepdim=*/true));
      const at::Tensor fade = maximum.sub(higher).exp_();
      const at::Tensor weights = scores.sub(higher).exp_();
      sum.mul_(fade).add_(weights.sum(-1, /*keepdim=*/true));
      result.mul_(fade).add_(product(weights.to(dtype), states.values));
      maximum = higher;
    }
  }
  return result.div_(sum).to(dtype).reshape(
      {batch, query.size(1), query.size(2), front.value_dim()});
}

// The same of any number of queries.
inline at::Tensor segmented_attention(const at::Tensor& query, const View& view,
                                      const AttentionMask& mask, const ScoreOptions& options) {
  const std::int64_t tokens = query.size(2);
  if (tokens <= kTile || mask.kind == AttentionMask::Kind::causal) {
    return tile_of_segmented_attention(query, view, mask, options);
  }
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < tokens; first += kTile) {
    const std::int64_t count = std::min(kTile, tokens - first);
    const auto part_of = [&](const at::Tensor& t) {
      return t.defined() && t.size(2) == tokens ? t.narrow(2, first, count) : t;
    };
    AttentionMask part_mask = mask;
    part_mask.allowed = part_of(mask.allowed);
    ScoreOptions part_options = options;
    part_options.bias = part_of(options.bias);
    parts.push_back(
        tile_of_segmented_attention(query.narrow(2, first, count), view, part_mask, part_options));
  }
  return at::cat(parts, 2);
}

}  // namespace kvcache::detail
