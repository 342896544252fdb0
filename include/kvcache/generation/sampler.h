// Choosing the next token of each row from its scores: the best one, or one drawn at random.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kvcache/core/errors.h"

namespace kvcache {

// A generator on the CPU that draws what torch draws after torch.manual_seed(seed).
inline at::Generator make_generator(std::uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

namespace detail {

// `chosen`: one number a row that is not finite where the row gives nothing to choose from.
inline void check_rows(const at::Tensor& chosen) {
  const at::Tensor bad = chosen.isfinite().logical_not();
  if (!bad.any().item<bool>()) [[likely]]
    return;
  throw RuntimeError(c10::str("the scores of row ", bad.nonzero()[0].item<std::int64_t>(),
                              " leave no token to choose: they hold NaN or +inf, or are all -inf"));
}

}  // namespace detail

// The highest score's index, int64 [rows], of scores [rows, vocab]. Throws RuntimeError naming a
// row that holds NaN, or +inf, or nothing but -inf.
inline at::Tensor choose_best(const at::Tensor& scores) {
  const at::Tensor tokens = scores.argmax(-1);
  detail::check_rows(scores.gather(1, tokens.unsqueeze(1)).squeeze(1));
  return tokens;
}

// One index a row, int64 [rows], drawn with probabilities softmax(scores); float32 scores
// [rows, vocab] on the generator's device. On the CPU, with the same scores and generator state,
// what Transformers draws. Throws as choose_best.
inline at::Tensor choose_at_random(const at::Tensor& scores, const at::Generator& generator) {
  const at::Tensor probabilities = scores.softmax(-1);
  detail::check_rows(probabilities.select(1, 0));
  return probabilities.multinomial(1, /*replacement=*/false, generator).squeeze(1);
}

}  // namespace kvcache
