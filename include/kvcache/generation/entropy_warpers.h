// Warpers that cut off tokens by the entropy of the distribution. Probabilities, entropies and
// their sums are in float32 whatever the scores' dtype; the logarithm is the natural one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/probability_warpers.h"

namespace kvcache {

namespace detail {

// Of rows of log-probabilities, [rows, 1]. Tokens of probability 0 add nothing.
inline at::Tensor entropy_of(const at::Tensor& log_probabilities) {
  return log_probabilities.mul(log_probabilities.exp()).nansum(-1, /*keepdim=*/true).neg();
}

}  // namespace detail

// Of the 100 most probable tokens, keeps the first ones as long as their terms -p log p add up to
// top_h times the entropy of all 100 or less, at least one; with top_h = 1 all of a probability
// above 0. Which of several equal ones at the end stay is left open. (Potraghloo et al. 2025,
// arXiv:2509.02510)
class TopHLogitsWarper final : public LogitsProcessor {
 public:
  // Throws ValueError for top_h outside of (0, 1].
  explicit TopHLogitsWarper(double top_h) : top_h_(top_h) {
    check_value(top_h > 0 && top_h <= 1, "top_h must be above 0 and at most 1, but is ", top_h);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const std::int64_t count = std::min(kCandidates, scores.size(1));
    const auto [best, order] = scores.topk(count);
    const at::Tensor probabilities = best.softmax(-1, at::kFloat);
    const at::Tensor sums = at::xlogy(probabilities, probabilities).neg().cumsum(-1);
    const at::Tensor limit = sums.narrow(1, count - 1, 1).mul(top_h_);
    at::Tensor kept = sums.le(limit).logical_and_(probabilities.gt(0));
    kept.select(1, 0).fill_(true);
    const at::Tensor keep = at::zeros_like(scores, at::kBool).scatter_(1, order, kept);
    return scores.masked_fill(keep.logical_not(), detail::kMinusInfinity);
  }

 private:
  static constexpr std::int64_t kCandidates = 100;

  double top_h_;
};

// Keeps the tokens whose -log p is closest to the entropy, the fewest whose probabilities add up to
// typical_p or more, and all as close as the last of them. (Meister et al. 2022, arXiv:2202.00666)
class TypicalLogitsWarper final : public LogitsProcessor {
 public:
  // Keeps at least `min_tokens_to_keep`. Throws ValueError for typical_p outside of (0, 1), and for
  // a number below 1.
  explicit TypicalLogitsWarper(double typical_p, std::int64_t min_tokens_to_keep = 1)
      : typical_p_(typical_p), kept_(min_tokens_to_keep) {
    check_value(typical_p > 0 && typical_p < 1, "typical_p must be above 0 and below 1, but is ",
                typical_p);
    detail::check_kept(min_tokens_to_keep);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const at::Tensor logs = scores.log_softmax(-1, at::kFloat);
    const at::Tensor distances = logs.neg().sub(detail::entropy_of(logs)).abs();
    const auto [sorted, order] = distances.sort(-1, /*descending=*/false);
    const at::Tensor cumulative = scores.gather(-1, order).softmax(-1, at::kFloat).cumsum(-1);
    const at::Tensor below = cumulative.lt(typical_p_).sum(1, /*keepdim=*/true);
    const at::Tensor last = sorted.gather(1, below.clamp_max_(scores.size(1) - 1));
    at::Tensor removed = sorted.gt(last);
    removed.narrow(1, 0, std::min(kept_, scores.size(1))).fill_(false);
    return scores.masked_fill(removed.scatter(1, order, removed), detail::kMinusInfinity);
  }

 private:
  double typical_p_;
  std::int64_t kept_;
};

// Keeps tokens of a probability of min(epsilon, sqrt(epsilon) exp(-entropy)) or more. (Hewitt et
// al. 2022, arXiv:2210.15191)
class EtaLogitsWarper final : public LogitsProcessor {
 public:
  // Keeps at least the `min_tokens_to_keep` highest scores, and all equal to the lowest of them.
  // Throws ValueError for an epsilon outside of (0, 1), and for a number below 1.
  explicit EtaLogitsWarper(double epsilon, std::int64_t min_tokens_to_keep = 1)
      : epsilon_(epsilon), kept_(min_tokens_to_keep) {
    check_value(epsilon > 0 && epsilon < 1, "eta_cutoff must be above 0 and below 1, but is ",
                epsilon);
    detail::check_kept(min_tokens_to_keep);
  }

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    const at::Tensor entropy = detail::entropy_of(scores.log_softmax(-1, at::kFloat));
    const at::Tensor eta = entropy.neg().exp().mul(std::sqrt(epsilon_)).clamp_max(epsilon_);
    return detail::remove_below(eta, scores, kept_);
  }

 private:
  double epsilon_;
  std::int64_t kept_;
};

}  // namespace kvcache
