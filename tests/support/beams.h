// Prompts for beam search.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvcache/generation/runner.h"
#include "kvcache/generation/stopping.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {

inline at::Tensor random_ids(std::int64_t rows, std::int64_t tokens, std::uint64_t seed) {
  return at::randint(3, 64, {rows, tokens}, at::make_generator<at::CPUGeneratorImpl>(seed),
                     at::kLong);
}

// Ends the texts of one prompt, which its last token tells, with so many new tokens.
class EndsPrompt final : public StoppingCriterion {
 public:
  EndsPrompt(std::int64_t column, std::int64_t token, std::int64_t new_tokens)
      : column_(column), token_(token), new_tokens_(new_tokens) {}

  at::Tensor complete(const TokenRows& text) override {
    const at::Tensor ends = text.ids.select(1, column_).eq(token_);
    return ends.logical_and(at::full({}, text.length() > column_ + new_tokens_, at::kBool));
  }

 private:
  std::int64_t column_, token_, new_tokens_;
};

// New tokens at which each of three prompts ends.
inline constexpr std::array<std::int64_t, 3> kPromptEnds{5, 3, 8};

// Three prompts with three last tokens, and what ends them.
inline Inputs three_prompts(bool encoder) {
  Inputs inputs{.input_ids = random_ids(3, 5, 11)};
  inputs.input_ids.select(1, 4).copy_(at::tensor({20, 21, 22}, at::kLong));
  std::int64_t column = 4;
  if (encoder) {
    inputs.decoder_input_ids = ids_tensor({{0, 20}, {0, 21}, {0, 22}});
    column = 1;
  }
  for (std::size_t i = 0; i < kPromptEnds.size(); ++i) {
    inputs.stopping_criteria.push_back(
        std::make_shared<EndsPrompt>(column, 20 + std::int64_t(i), kPromptEnds[i]));
  }
  return inputs;
}

inline GenerationConfig three_prompts_config() {
  return {.max_new_tokens = 8, .num_beams = 3, .num_return_sequences = 2, .pad_token_id = 0};
}

}  // namespace kvcache::testing
