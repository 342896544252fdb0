// A logits processor that throws in the middle of a text.
#pragma once

#include <ATen/ATen.h>

#include <stdexcept>

#include "kvcache/generation/logits_processor.h"

namespace kvcache::testing {

// Throws std::runtime_error at its `call`th call, counted from 1.
class FailingProcessor final : public LogitsProcessor {
 public:
  explicit FailingProcessor(int call) : call_(call) {}

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    if (++calls_ == call_) throw std::runtime_error("a processor failed");
    return scores;
  }

 private:
  int call_;
  int calls_ = 0;
};

}  // namespace kvcache::testing
