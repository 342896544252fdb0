// Processors that go by what the encoder read; of a model without one, by the prompt.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/ngram_processors.h"
#include "kvcache/generation/repetition_processors.h"

namespace kvcache {

namespace detail {

// The encoder's ids without their padding, for any number of texts that share its rows evenly.
class EncoderIds {
 public:
  explicit EncoderIds(const TokenRows& encoder)
      : encoder_(encoder.right_aligned().clone()), ids_(encoder_) {}

  std::int64_t length() const { return encoder_.size(1); }

  // int64 [rows, length], tokens at the end and -1 before them. Throws ValueError for rows that are
  // no multiple of the encoder's.
  const at::Tensor& for_rows(std::int64_t rows) {
    if (ids_.size(0) == rows) return ids_;
    const std::int64_t inputs = encoder_.size(0);
    check_value(rows % inputs == 0, "there are scores of ", rows,
                " rows, which is no multiple of the encoder's ", inputs);
    return ids_ = encoder_.repeat_interleave(rows / inputs, 0);
  }

 private:
  at::Tensor encoder_;  // [inputs, length]
  at::Tensor ids_;      // [rows of the last call, length]
};

}  // namespace detail

// Ids that the encoder read get score * penalty, or score / penalty where the score is negative:
// above 1 they become likelier. Once, however often they occur.
class EncoderRepetitionPenaltyLogitsProcessor final : public LogitsProcessor {
 public:
  // `encoder_input`: a row for each input, on the texts' device. Each serves as many neighbouring
  // rows of scores. Throws ValueError unless the penalty is above 0 and a normal float32.
  EncoderRepetitionPenaltyLogitsProcessor(double penalty, const TokenRows& encoder_input)
      : penalty_(penalty), encoder_(encoder_input) {
    detail::check_penalty("encoder_repetition_penalty", penalty);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return detail::scale_scores_of(encoder_.for_rows(scores.size(0)), scores, 1 / penalty_);
  }

 private:
  double penalty_;
  detail::EncoderIds encoder_;
};

// No n-gram that the encoder read is completed.
class EncoderNoRepeatNGramLogitsProcessor final : public LogitsProcessor {
 public:
  // `encoder_ngram_size`: tokens; `encoder_input` as above. Throws ValueError unless the size is
  // above 0.
  EncoderNoRepeatNGramLogitsProcessor(std::int64_t encoder_ngram_size,
                                      const TokenRows& encoder_input)
      : ngram_size_(encoder_ngram_size), encoder_(encoder_input) {
    check_value(encoder_ngram_size > 0, "encoder_no_repeat_ngram_size must be above 0, but is ",
                encoder_ngram_size);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    const std::int64_t before = ngram_size_ - 1;
    if (text.length() < before || encoder_.length() < ngram_size_) return scores;
    const at::Tensor prefix = text.right_aligned().narrow(1, text.length() - before, before);
    return detail::forbid_successors(prefix, encoder_.for_rows(scores.size(0)), scores);
  }

 private:
  std::int64_t ngram_size_;
  detail::EncoderIds encoder_;
};

}  // namespace kvcache
