// The processor that makes tokens of the text less likely to come again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include <cstdint>
#include <limits>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"

namespace kvcache {

namespace detail {

// Scores of the ids that occur in a row become score / factor, or score * factor where they are
// negative; once, however often an id occurs. ids int64 [rows, n]; those outside of the vocabulary,
// such as -1 for padding, are left out.
inline at::Tensor scale_scores_of(const at::Tensor& ids, const at::Tensor& scores, double factor) {
  const std::int64_t vocab = scores.size(1);
  const at::Tensor columns = ids.masked_fill(ids.lt(0).logical_or(ids.ge(vocab)), vocab);
  at::Tensor wide = at::constant_pad_nd(scores, {0, 1});
  const at::Tensor old = wide.gather(1, columns);
  wide.scatter_(1, columns, at::where(old.lt(0), old.mul(factor), old.div(factor)));
  return wide.narrow(1, 0, vocab);
}

// Throws ValueError unless scores in float32 can be multiplied and divided by it.
inline void check_penalty(const char* field, double penalty) {
  using Limits = std::numeric_limits<float>;
  check_value(penalty >= Limits::min() && penalty <= Limits::max(), field,
              " must be above 0 and a normal float32, but is ", penalty);
}

// Ids with -1 for padding, int64 [rows, length].
inline at::Tensor ids_without_padding(const TokenRows& text) {
  return text.valid ? text.ids.masked_fill(text.valid->logical_not(), -1) : text.ids;
}

}  // namespace detail

// Ids that occur in the text get score / penalty, or score * penalty where the score is negative;
// once, however often they occur. (Keskar et al. 2019, arXiv:1909.05858)
class RepetitionPenaltyLogitsProcessor final : public LogitsProcessor {
 public:
  // Throws ValueError unless the penalty is above 0 and a normal float32.
  explicit RepetitionPenaltyLogitsProcessor(double penalty) : penalty_(penalty) {
    detail::check_penalty("repetition_penalty", penalty);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    return detail::scale_scores_of(detail::ids_without_padding(text), scores, penalty_);
  }

 private:
  double penalty_;
};

}  // namespace kvcache
