// The processor that lets no sequence of n tokens come twice in a text.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"

namespace kvcache {

namespace detail {

// Forbids the tokens that follow `prefix` somewhere in `texts`, whose negative ids are padding;
// int64 [rows, n - 1] and [rows, length >= n]. A prefix with padding in it occurs nowhere; an empty
// one everywhere. Compares all positions at once, without waiting for the device.
inline at::Tensor forbid_successors(const at::Tensor& prefix, const at::Tensor& texts,
                                    const at::Tensor& scores) {
  const std::int64_t before = prefix.size(1), vocab = scores.size(1);
  const std::int64_t positions = texts.size(1) - before;
  const at::Tensor successors = texts.narrow(1, before, positions);
  at::Tensor follows = successors.ge(0).logical_and_(successors.lt(vocab));
  for (std::int64_t i = 0; i < before; ++i) {
    const at::Tensor wanted = prefix.narrow(1, i, 1);
    follows.logical_and_(texts.narrow(1, i, positions).eq(wanted)).logical_and_(wanted.ge(0));
  }
  // Positions that do not match set a column behind the vocabulary.
  at::Tensor forbidden = at::zeros({scores.size(0), vocab + 1}, scores.options().dtype(at::kBool));
  forbidden.scatter_(1, successors.masked_fill(follows.logical_not(), vocab), true);
  return scores.masked_fill(forbidden.narrow(1, 0, vocab), kMinusInfinity);
}

}  // namespace detail

// No n-gram of a row, prompt included, is completed a second time. (Paulus et al. 2017,
// arXiv:1705.04304)
class NoRepeatNGramLogitsProcessor final : public LogitsProcessor {
 public:
  // `ngram_size`: tokens. Throws ValueError unless it is above 0.
  explicit NoRepeatNGramLogitsProcessor(std::int64_t ngram_size) : ngram_size_(ngram_size) {
    check_value(ngram_size > 0, "no_repeat_ngram_size must be above 0, but is ", ngram_size);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    if (text.length() < ngram_size_) return scores;
    const at::Tensor texts = text.right_aligned();
    const std::int64_t before = ngram_size_ - 1;
    return detail::forbid_successors(texts.narrow(1, text.length() - before, before), texts,
                                     scores);
  }

 private:
  std::int64_t ngram_size_;
};

}  // namespace kvcache
