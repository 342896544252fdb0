// The interface of what changes a model's scores before a token is chosen, for processors of one's
// own; those of Transformers are in logits_processors.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <memory>
#include <vector>

#include "kvcache/generation/token_rows.h"

namespace kvcache {

class LogitsProcessor {
 public:
  LogitsProcessor() = default;
  LogitsProcessor(const LogitsProcessor&) = delete;
  LogitsProcessor& operator=(const LogitsProcessor&) = delete;
  virtual ~LogitsProcessor() = default;

  // scores [rows, vocab], float32 in generate(), on the texts' device. Returns new scores of the
  // same shape; must not write to `scores`. Padding in `text` is no token and must have no
  // influence. The rows need not be those of the call before: texts may grow, shrink and move.
  //
  // Rows that hold NaN, or are all -inf, are no error here: what they leave to choose is checked,
  // and the row named, when a token is chosen.
  virtual at::Tensor process(const TokenRows& text, const at::Tensor& scores) = 0;
};

using LogitsProcessors = std::vector<std::shared_ptr<LogitsProcessor>>;

namespace detail {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace detail

}  // namespace kvcache
