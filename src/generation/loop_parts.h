// What every way of decoding does alike: checks before the first token, the scores that a token is
// chosen by, and which texts are complete with it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "generation/configured_processors.h"
#include "generation/prompt.h"
#include "kvcache/cache/cache.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/stopping.h"

namespace kvcache::detail {

// What the config's processors start from: the whole text, and what the encoder reads.
ProcessorStart processor_start(const LanguageModel& model, const Prompt& prompt, const Cache* cache,
                               std::int64_t max_length);

// Throws ValueError without a generator on the device of `ids`.
void check_generator(const Inputs& inputs, const at::Tensor& ids);

// Refuses a cache that the text may outgrow, before anything is fed to it. Throws ValueError.
void check_capacity(const Cache& cache, std::int64_t max_length);

// Scores [rows, vocab] behind all processors. Throws RuntimeError where one changes their shape.
at::Tensor processed(const LogitsProcessors& processors, const TokenRows& text, at::Tensor scores);

// bool [rows] on the text's device: the rows that any criterion calls complete. Throws RuntimeError
// for one that answers with something else.
at::Tensor completed(const StoppingCriteria& criteria, const TokenRows& text);

class Stopwatch {
 public:
  // Since it was made or lapped.
  double lap_seconds() {
    const auto begin = std::exchange(start_, Clock::now());
    return std::chrono::duration<double>(start_ - begin).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
};

}  // namespace kvcache::detail
