// Processors that go by a text's length: when its end is forbidden, and when it is made likelier.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/token_set.h"

namespace kvcache {

// No end of text before a row holds `min_length` tokens, its prompt included and padding not.
class MinLengthLogitsProcessor final : public LogitsProcessor {
 public:
  // Throws ValueError for a negative length, or end tokens that are none or not of the vocabulary.
  MinLengthLogitsProcessor(std::int64_t min_length, const std::vector<std::int64_t>& eos_token_id,
                           std::int64_t vocab_size)
      : min_length_(min_length), eos_("eos_token_id", eos_token_id, vocab_size) {
    check_value(min_length >= 0, "min_length must not be negative, but is ", min_length);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    const at::Tensor& eos = eos_.mask(scores);
    if (text.length() < min_length_) return scores.masked_fill(eos, detail::kMinusInfinity);
    if (!text.valid) return scores;
    const at::Tensor short_rows = text.lengths().lt(min_length_).unsqueeze(1);
    return scores.masked_fill(short_rows.logical_and(eos), detail::kMinusInfinity);
  }

 private:
  std::int64_t min_length_;
  detail::TokenSet eos_;
};

// No end of text before there are `min_new_tokens` columns behind the prompt's.
class MinNewTokensLengthLogitsProcessor final : public LogitsProcessor {
 public:
  // `prompt_length_to_skip`: the prompt's columns, padding included. Throws ValueError for a
  // negative number, or end tokens that are none or not of the vocabulary.
  MinNewTokensLengthLogitsProcessor(std::int64_t prompt_length_to_skip, std::int64_t min_new_tokens,
                                    const std::vector<std::int64_t>& eos_token_id,
                                    std::int64_t vocab_size)
      : prompt_length_(prompt_length_to_skip),
        min_new_tokens_(min_new_tokens),
        eos_("eos_token_id", eos_token_id, vocab_size) {
    check_value(prompt_length_to_skip >= 0, "prompt_length_to_skip must not be negative, but is ",
                prompt_length_to_skip);
    check_value(min_new_tokens >= 0, "min_new_tokens must not be negative, but is ",
                min_new_tokens);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    const at::Tensor& eos = eos_.mask(scores);
    if (text.length() - prompt_length_ >= min_new_tokens_) return scores;
    return scores.masked_fill(eos, detail::kMinusInfinity);
  }

 private:
  std::int64_t prompt_length_;
  std::int64_t min_new_tokens_;
  detail::TokenSet eos_;
};

// n tokens behind the `start_index` first new ones, an end token's score s becomes
// s + |s| (decay_factor^n - 1), at most the largest number of its dtype; a score that is not finite
// stays. Its name in Transformers is ExponentialDecayLengthPenalty.
class ExponentialDecayLengthPenaltyLogitsProcessor final : public LogitsProcessor {
 public:
  // `input_ids_seq_length`: the prompt's columns, padding included. Throws ValueError for a
  // length or a start that is negative, a factor that is not finite or not above 0, or end tokens
  // that are none or not of the vocabulary.
  ExponentialDecayLengthPenaltyLogitsProcessor(const ExponentialDecayLengthPenalty& penalty,
                                               const std::vector<std::int64_t>& eos_token_id,
                                               std::int64_t input_ids_seq_length,
                                               std::int64_t vocab_size)
      : prompt_length_(input_ids_seq_length),
        start_index_(penalty.start_index),
        factor_(penalty.decay_factor),
        eos_("eos_token_id", eos_token_id, vocab_size) {
    check_value(prompt_length_ >= 0, "input_ids_seq_length must not be negative, but is ",
                prompt_length_);
    check_value(penalty.start_index >= 0,
                "the start index of exponential_decay_length_penalty must not be negative, but is ",
                penalty.start_index);
    check_value(std::isfinite(factor_) && factor_ > 0,
                "the decay factor of exponential_decay_length_penalty must be above 0, but is ",
                factor_);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    const at::Tensor& eos = eos_.ids(scores);
    const std::int64_t past = text.length() - prompt_length_ - start_index_;
    if (past <= 0) return scores;
    const at::Tensor old = scores.index_select(1, eos);
    // Below the largest double, so that 0 times it stays 0.
    const double growth = std::min(std::pow(factor_, static_cast<double>(past)), 1e300) - 1;
    const at::Tensor wide = old.to(at::kDouble);
    const at::Tensor raised = wide.add(wide.abs().mul(growth)).to(old.scalar_type());
    return scores.index_copy(1, eos, at::where(old.isfinite(), at::nan_to_num(raised), old));
  }

 private:
  std::int64_t prompt_length_;
  std::int64_t start_index_;
  double factor_;
  detail::TokenSet eos_;
};

}  // namespace kvcache
