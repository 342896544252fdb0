// What changes a model's scores before a token is chosen: Transformers' processors, with its
// formulas, and the interface for processors of one's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"

namespace kvcache {

// The texts so far, prompt and new tokens.
struct TokenRows {
  at::Tensor ids;                        // int64 [rows, length]
  std::optional<at::Tensor> valid = {};  // bool [rows, length], false: padding; absent: none

  std::int64_t length() const { return ids.size(1); }

  // One row without its padding, int64 [tokens].
  at::Tensor row(std::int64_t index) const {
    const at::Tensor all = ids.select(0, index);
    return valid ? all.masked_select(valid->select(0, index)) : all;
  }
};

class LogitsProcessor {
 public:
  LogitsProcessor() = default;
  LogitsProcessor(const LogitsProcessor&) = delete;
  LogitsProcessor& operator=(const LogitsProcessor&) = delete;
  virtual ~LogitsProcessor() = default;

  // scores [rows, vocab], float32 in generate(), on the texts' device. Returns new scores of the
  // same shape; must not write to `scores`. Padding in `text` is no token and must have no
  // influence.
  virtual at::Tensor process(const TokenRows& text, const at::Tensor& scores) = 0;
};

using LogitsProcessors = std::vector<std::shared_ptr<LogitsProcessor>>;

namespace detail {
inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
}

// Ids that occur in the text get score / penalty, or score * penalty where the score is negative;
// once, however often they occur. (Keskar et al. 2019, arXiv:1909.05858)
class RepetitionPenaltyLogitsProcessor final : public LogitsProcessor {
 public:
  explicit RepetitionPenaltyLogitsProcessor(double penalty) : penalty_(penalty) {
    check_value(std::isfinite(penalty) && penalty > 0,
                "repetition_penalty must be above 0, but is ", penalty);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    if (!text.valid) return penalized(text.ids, scores);
    // Padding counts as one more id, behind the vocabulary.
    const std::int64_t vocab = scores.size(1);
    const at::Tensor ids = text.ids.masked_fill(text.valid->logical_not(), vocab);
    return penalized(ids, at::constant_pad_nd(scores, {0, 1})).narrow(1, 0, vocab);
  }

 private:
  at::Tensor penalized(const at::Tensor& ids, const at::Tensor& scores) const {
    const at::Tensor old = scores.gather(1, ids);
    return scores.scatter(1, ids, at::where(old.lt(0), old.mul(penalty_), old.div(penalty_)));
  }

  double penalty_;
};

// No end of text before the text, padding included, is `min_length` tokens long. For
// min_new_tokens: the prompt's length and so many.
class MinLengthLogitsProcessor final : public LogitsProcessor {
 public:
  // eos_token_id: int64 [n].
  MinLengthLogitsProcessor(std::int64_t min_length, at::Tensor eos_token_id)
      : min_length_(min_length), eos_token_id_(std::move(eos_token_id)) {
    check_value(min_length >= 0, "the minimum length must not be negative, but is ", min_length);
  }

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    if (text.length() >= min_length_) return scores;
    const at::Tensor vocab = at::arange(scores.size(1), eos_token_id_.options());
    return scores.masked_fill(at::isin(vocab, eos_token_id_), detail::kMinusInfinity);
  }

 private:
  std::int64_t min_length_;
  at::Tensor eos_token_id_;
};

// scores / temperature.
class TemperatureLogitsWarper final : public LogitsProcessor {
 public:
  explicit TemperatureLogitsWarper(double temperature) : temperature_(temperature) {
    check_value(std::isfinite(temperature) && temperature > 0,
                "temperature must be above 0 when sampling, but is ", temperature,
                "; for the best token at each step set do_sample to false");
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return scores.div(temperature_);
  }

 private:
  double temperature_;
};

// Keeps the k highest scores, and all equal to the lowest of them.
class TopKLogitsWarper final : public LogitsProcessor {
 public:
  explicit TopKLogitsWarper(std::int64_t top_k) : top_k_(top_k) {
    check_value(top_k > 0, "top_k must be above 0, but is ", top_k);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const std::int64_t k = std::min(top_k_, scores.size(1));
    const at::Tensor lowest = std::get<0>(scores.topk(k)).narrow(1, k - 1, 1);
    return scores.masked_fill(scores.lt(lowest), detail::kMinusInfinity);
  }

 private:
  std::int64_t top_k_;
};

// Keeps the fewest most probable tokens whose probabilities add up to top_p or more, at least one.
// Sums are in float32 whatever the scores' dtype. (Holtzman et al. 2019, arXiv:1904.09751)
class TopPLogitsWarper final : public LogitsProcessor {
 public:
  explicit TopPLogitsWarper(double top_p) : top_p_(top_p) {
    check_value(top_p >= 0 && top_p <= 1, "top_p must be in [0, 1], but is ", top_p);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const auto [sorted, order] = scores.sort(-1, /*descending=*/false);
    const at::Tensor cumulative = sorted.softmax(-1, at::kFloat).cumsum(-1);
    at::Tensor remove = cumulative.le(1 - top_p_);
    remove.select(1, -1).fill_(false);
    return scores.masked_fill(remove.scatter(1, order, remove), detail::kMinusInfinity);
  }

 private:
  double top_p_;
};

// Keeps tokens at least min_p times as probable as the most probable one. (Nguyen et al. 2024,
// arXiv:2407.01082)
class MinPLogitsWarper final : public LogitsProcessor {
 public:
  explicit MinPLogitsWarper(double min_p) : min_p_(min_p) {
    check_value(min_p >= 0 && min_p <= 1, "min_p must be in [0, 1], but is ", min_p);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const at::Tensor probabilities = scores.softmax(-1, at::kFloat);
    at::Tensor remove = probabilities.lt(probabilities.amax(-1, true).mul(min_p_));
    remove.scatter_(1, std::get<1>(probabilities.topk(1)), false);
    return scores.masked_fill(remove, detail::kMinusInfinity);
  }

 private:
  double min_p_;
};

}  // namespace kvcache
