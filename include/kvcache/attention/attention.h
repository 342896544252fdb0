// Attention over a view: one dense segment through LibTorch's kernels, several by a running
// softmax. Grouped queries never copy keys or values per query head.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kvcache/attention/mask.h"
#include "kvcache/core/view.h"

namespace kvcache {

struct AttentionOptions {
  double scale = 0;                    // factor on query-key products; 0: 1 / sqrt(key_dim)
  std::optional<double> softcap = {};  // scores become softcap * tanh(scores / softcap)
};

// query [batch, heads, tokens, key_dim], heads a multiple of the view's kv_heads;
// returns [batch, heads, tokens, value_dim] in the query's dtype. Throws ValueError for shapes that
// do not fit.
at::Tensor attention(const at::Tensor& query, const View& view, const AttentionMask& mask,
                     const AttentionOptions& options = {});

}  // namespace kvcache
