// When a row of text is complete: at an end token, or by a criterion of one's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isin.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/token_rows.h"

namespace kvcache {

class StoppingCriterion {
 public:
  StoppingCriterion() = default;
  StoppingCriterion(const StoppingCriterion&) = delete;
  StoppingCriterion& operator=(const StoppingCriterion&) = delete;
  virtual ~StoppingCriterion() = default;

  // bool [rows] on the texts' device: whether a row is complete with its newest token. Asked after
  // every step, also for rows that have ended before; what it says of those does not matter. With
  // beams the rows are those that may become one, and others in each step.
  virtual at::Tensor complete(const TokenRows& text) = 0;
};

using StoppingCriteria = std::vector<std::shared_ptr<StoppingCriterion>>;

// Rows whose newest token is one of some.
class EosTokenCriteria final : public StoppingCriterion {
 public:
  // eos_token_id: int64 [n].
  explicit EosTokenCriteria(at::Tensor eos_token_id) : eos_token_id_(std::move(eos_token_id)) {}

  at::Tensor complete(const TokenRows& text) override {
    return at::isin(text.ids.select(1, -1), eos_token_id_);
  }

 private:
  at::Tensor eos_token_id_;
};

// All rows, once so much time has gone by since this was made; a step that has begun is finished.
class MaxTimeCriteria final : public StoppingCriterion {
 public:
  using Clock = std::chrono::steady_clock;

  // max_time: seconds; 0 ends at the first new token. Throws ValueError for others.
  explicit MaxTimeCriteria(double max_time) : max_time_(max_time) {
    check_value(max_time >= 0, "max_time must be at least 0 seconds, but is ", max_time);
  }

  at::Tensor complete(const TokenRows& text) override {
    const std::chrono::duration<double> passed = Clock::now() - start_;
    return at::full({text.ids.size(0)}, passed.count() > max_time_,
                    text.ids.options().dtype(at::kBool));
  }

 private:
  double max_time_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace kvcache
