// Processors that force or forbid single tokens.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <cstdint>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/token_set.h"

namespace kvcache {

namespace detail {

// 0 for some tokens, -inf for all others, whatever the scores were.
inline at::Tensor only(TokenSet& tokens, const at::Tensor& scores) {
  return at::full_like(scores, kMinusInfinity).masked_fill_(tokens.mask(scores), 0);
}

}  // namespace detail

// The second token of a row is bos_token_id: for rows that hold one token, such as the first one of
// a decoder with an encoder.
class ForcedBOSTokenLogitsProcessor final : public LogitsProcessor {
 public:
  // Throws ValueError for an id outside of the vocabulary.
  ForcedBOSTokenLogitsProcessor(std::int64_t bos_token_id, std::int64_t vocab_size)
      : bos_("forced_bos_token_id", {bos_token_id}, vocab_size) {}

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    if (text.length() == 1) return detail::only(bos_, scores);
    if (!text.valid) return scores;
    return at::where(text.lengths().eq(1).unsqueeze(1), detail::only(bos_, scores), scores);
  }

 private:
  detail::TokenSet bos_;
};

// The last token that max_length leaves room for is one of eos_token_id, all equally likely.
class ForcedEOSTokenLogitsProcessor final : public LogitsProcessor {
 public:
  // `max_length`: of the text in columns, padding included. Throws ValueError for a length below 1,
  // and for end tokens that are none or not of the vocabulary.
  ForcedEOSTokenLogitsProcessor(std::int64_t max_length,
                                const std::vector<std::int64_t>& eos_token_id,
                                std::int64_t vocab_size)
      : max_length_(max_length), eos_("forced_eos_token_id", eos_token_id, vocab_size) {
    check_value(max_length >= 1, "max_length must be at least 1, but is ", max_length);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    return text.length() == max_length_ - 1 ? detail::only(eos_, scores) : scores;
  }

 private:
  std::int64_t max_length_;
  detail::TokenSet eos_;
};

// Some tokens are never chosen.
class SuppressTokensLogitsProcessor final : public LogitsProcessor {
 public:
  // Throws ValueError if there are none, and for an id outside of the vocabulary.
  SuppressTokensLogitsProcessor(const std::vector<std::int64_t>& suppress_tokens,
                                std::int64_t vocab_size)
      : tokens_("suppress_tokens", suppress_tokens, vocab_size) {}

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return scores.masked_fill(tokens_.mask(scores), detail::kMinusInfinity);
  }

 private:
  detail::TokenSet tokens_;
};

// Some tokens are not chosen first, where the text is `begin_index` columns long.
class SuppressTokensAtBeginLogitsProcessor final : public LogitsProcessor {
 public:
  // `begin_index`: the prompt's columns, padding included. `behind_forced_bos`: rows that a
  // ForcedBOSTokenLogitsProcessor gives their first new token come one later. Throws ValueError if
  // there are no tokens, and for an id outside of the vocabulary.
  SuppressTokensAtBeginLogitsProcessor(const std::vector<std::int64_t>& begin_suppress_tokens,
                                       std::int64_t begin_index, std::int64_t vocab_size,
                                       bool behind_forced_bos = false)
      : tokens_("begin_suppress_tokens", begin_suppress_tokens, vocab_size),
        begin_index_(begin_index),
        behind_forced_bos_(behind_forced_bos) {}

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    const at::Tensor& tokens = tokens_.mask(scores);
    const std::int64_t past = text.length() - begin_index_;
    if (past != 0 && !(past == 1 && behind_forced_bos_)) return scores;
    if (!behind_forced_bos_) return scores.masked_fill(tokens, detail::kMinusInfinity);
    // A row was forced if it began with one token.
    const at::Tensor forced = text.lengths().eq(1 + past);
    const at::Tensor rows = past == 1 ? forced : forced.logical_not();
    return scores.masked_fill(rows.unsqueeze(1).logical_and(tokens), detail::kMinusInfinity);
  }

 private:
  detail::TokenSet tokens_;
  std::int64_t begin_index_;
  bool behind_forced_bos_;
};

}  // namespace kvcache
