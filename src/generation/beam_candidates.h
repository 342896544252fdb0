// The step of beam search that looks at scores: of all continuations of a row's beams, those worth
// a look.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kvcache::detail {

struct Candidate {
  float score = 0;        // sum of the log-probabilities of its new tokens
  std::int64_t beam = 0;  // that it continues, numbered through all rows
  std::int64_t token = 0;
};

// As many for each row, best first.
struct Candidates {
  std::vector<Candidate> list = {};
  std::int64_t each = 0;

  // int64 [all], on the CPU.
  at::Tensor beams() const;
  at::Tensor tokens() const;
};

// Scores [rows, beams, vocab], float32: the best `each` of a row. Throws RuntimeError naming a row
// that holds NaN, or +inf, or nothing but -inf.
Candidates best_candidates(const at::Tensor& scores, std::int64_t each);

// Ones drawn without replacement, with probabilities softmax(scores) over a row. On the CPU, with
// the same scores and generator state, those that Transformers draws. Throws as best_candidates.
Candidates drawn_candidates(const at::Tensor& scores, std::int64_t each,
                            const at::Generator& generator);

}  // namespace kvcache::detail
