// The operator kvcache::segment_attention: attention of a few queries over segments of any kind,
// each read where it lies, packed ones as they are packed. Of the compiled library.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kvcache/core/view.h"

namespace kvcache::detail {

inline constexpr std::int64_t kMostHeadDim = 512;  // that the operator takes

struct SegmentAttentionOptions {
  double scale = 1;                        // factor on query-key products
  std::optional<double> softcap = {};      // scores become softcap * tanh(scores / softcap)
  std::optional<at::Tensor> allowed = {};  // bool [batch or 1, 1, tokens, columns]; absent: all
};

// Whether the operator runs on tensors of `device`: on a CUDA one only where kvcache::cuda is
// linked.
bool has_segment_attention(at::Device device);

// query [batch, heads, tokens, key_dim] over view.visible.length columns, as attention() has
// checked them: [batch, heads, tokens, value_dim] in the query's dtype, computed in float32.
at::Tensor segment_attention(const at::Tensor& query, const View& view,
                             const SegmentAttentionOptions& options);

}  // namespace kvcache::detail
