// Processors that rescale all scores alike, or make numbers of those that are none.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nan_to_num.h>

#include <cmath>

#include "kvcache/core/errors.h"
#include "kvcache/generation/logits_processor.h"

namespace kvcache {

// scores / temperature.
class TemperatureLogitsWarper final : public LogitsProcessor {
 public:
  // Throws ValueError unless the temperature is finite and above 0.
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

// NaN becomes 0, +inf and -inf the largest and smallest numbers of the scores' dtype: also the -inf
// of processors before it, so that a token is left to choose where all were forbidden.
class InfNanRemoveLogitsProcessor final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return at::nan_to_num(scores);
  }
};

// The logarithm of softmax(scores), computed in float32.
class LogitNormalization final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return scores.log_softmax(-1, at::kFloat).to(scores.scalar_type());
  }
};

}  // namespace kvcache
