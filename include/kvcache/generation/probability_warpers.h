// Warpers that cut off unlikely tokens by rank or by probability. Probabilities and their sums are
// in float32 whatever the scores' dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"

namespace kvcache {

namespace detail {

inline void check_kept(std::int64_t min_tokens_to_keep) {
  check_value(min_tokens_to_keep >= 1, "min_tokens_to_keep must be at least 1, but is ",
              min_tokens_to_keep);
}

// The k-th highest score of each row, [rows, 1]; of fewer than k scores the lowest.
inline at::Tensor kth_highest(const at::Tensor& scores, std::int64_t k) {
  const std::int64_t last = std::min(k, scores.size(1));
  return std::get<0>(scores.topk(last)).narrow(1, last - 1, 1);
}

// Removes tokens whose probability is below `threshold`, float32 [rows, 1] or a number, but not the
// `kept` highest scores and what equals the lowest of them.
template <typename Threshold>
at::Tensor remove_below(const Threshold& threshold, const at::Tensor& scores, std::int64_t kept) {
  const at::Tensor unlikely = scores.softmax(-1, at::kFloat).lt(threshold);
  const at::Tensor removed = unlikely.logical_and(scores.lt(kth_highest(scores, kept)));
  return scores.masked_fill(removed, kMinusInfinity);
}

}  // namespace detail

// Keeps the k highest scores, and all equal to the lowest of them; all of a vocabulary that is
// smaller than k.
class TopKLogitsWarper final : public LogitsProcessor {
 public:
  // Keeps at least `min_tokens_to_keep`. Throws ValueError for numbers below 1.
  explicit TopKLogitsWarper(std::int64_t top_k, std::int64_t min_tokens_to_keep = 1)
      : top_k_(std::max(top_k, min_tokens_to_keep)) {
    check_value(top_k > 0, "top_k must be above 0, but is ", top_k);
    detail::check_kept(min_tokens_to_keep);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const at::Tensor removed = scores.lt(detail::kth_highest(scores, top_k_));
    return scores.masked_fill(removed, detail::kMinusInfinity);
  }

 private:
  std::int64_t top_k_;
};

// Keeps the fewest most probable tokens whose probabilities add up to top_p or more. Which of
// several equal ones at the end of that list stay is left open. (Holtzman et al. 2019,
// arXiv:1904.09751)
class TopPLogitsWarper final : public LogitsProcessor {
 public:
  // Keeps at least `min_tokens_to_keep`. Throws ValueError for top_p outside of [0, 1], and for a
  // number below 1.
  explicit TopPLogitsWarper(double top_p, std::int64_t min_tokens_to_keep = 1)
      : top_p_(top_p), kept_(min_tokens_to_keep) {
    check_value(top_p >= 0 && top_p <= 1, "top_p must be in [0, 1], but is ", top_p);
    detail::check_kept(min_tokens_to_keep);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const auto [sorted, order] = scores.sort(-1, /*descending=*/false);
    const at::Tensor cumulative = sorted.softmax(-1, at::kFloat).cumsum(-1);
    at::Tensor removed = cumulative.le(1 - top_p_);
    const std::int64_t kept = std::min(kept_, scores.size(1));
    removed.narrow(1, scores.size(1) - kept, kept).fill_(false);
    return scores.masked_fill(removed.scatter(1, order, removed), detail::kMinusInfinity);
  }

 private:
  double top_p_;
  std::int64_t kept_;
};

// Keeps tokens at least min_p times as probable as the most probable one. (Nguyen et al. 2024,
// arXiv:2407.01082)
class MinPLogitsWarper final : public LogitsProcessor {
 public:
  // Keeps at least `min_tokens_to_keep`. Throws ValueError for min_p outside of [0, 1], and for a
  // number below 1.
  explicit MinPLogitsWarper(double min_p, std::int64_t min_tokens_to_keep = 1)
      : min_p_(min_p), kept_(min_tokens_to_keep) {
    check_value(min_p >= 0 && min_p <= 1, "min_p must be in [0, 1], but is ", min_p);
    detail::check_kept(min_tokens_to_keep);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const at::Tensor probabilities = scores.softmax(-1, at::kFloat);
    at::Tensor removed = probabilities.lt(probabilities.amax(-1, true).mul(min_p_));
    const std::int64_t kept = std::min(kept_, scores.size(1));
    removed.scatter_(1, std::get<1>(probabilities.topk(kept)), false);
    return scores.masked_fill(removed, detail::kMinusInfinity);
  }

 private:
  double min_p_;
  std::int64_t kept_;
};

// Keeps tokens of a probability of epsilon or more. (Hewitt et al. 2022, arXiv:2210.15191)
class EpsilonLogitsWarper final : public LogitsProcessor {
 public:
  // Keeps at least the `min_tokens_to_keep` highest scores, and all equal to the lowest of them.
  // Throws ValueError for an epsilon outside of (0, 1), and for a number below 1.
  explicit EpsilonLogitsWarper(double epsilon, std::int64_t min_tokens_to_keep = 1)
      : epsilon_(epsilon), kept_(min_tokens_to_keep) {
    check_value(epsilon > 0 && epsilon < 1, "epsilon_cutoff must be above 0 and below 1, but is ",
                epsilon);
    detail::check_kept(min_tokens_to_keep);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return detail::remove_below(epsilon_, scores, kept_);
  }

 private:
  double epsilon_;
  std::int64_t kept_;
};

}  // namespace kvcache
