// Which query sees which key, in the cheapest form that says it: often no tensor at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

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
  std::int64_t seen = 0;         // column index of the first query
  std::int64_t tokens = 0;       // queries
  at::Device device = at::kCPU;  // where the mask is to lie
  // bool [batch, seen + tokens] on the CPU: false where a row holds padding. Absent: none does.
  std::optional<at::Tensor> valid = {};
};

// Windows count columns; chunks count from each row's first real token. A query that is padding
// sees itself alone, so that no row of the softmax is empty. Chunked layers under padding see
// exactly what the row would see alone.
AttentionMask make_mask(const MaskInput& input);

}  // namespace kvcache
