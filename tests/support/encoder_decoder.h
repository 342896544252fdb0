// Steps over an EncoderDecoderCache whose contents can be read in an assertion: the decoder's keys
// count, and the encoder's are its ids.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "tests/support/counting.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {

// An encoder's input whose first token is `name`: [rows, tokens] of consecutive ids.
inline CrossInput encoder_input(std::int64_t name, std::int64_t tokens, std::int64_t rows = 1) {
  Rows ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    ids.emplace_back();
    for (std::int64_t i = 0; i < tokens; ++i) ids.back().push_back(name + 50 * row + i);
  }
  return {.tokens = tokens, .batch = rows, .ids = ids_tensor(ids)};
}

// The cross keys of an encoder's input: its ids.
inline at::Tensor cross_keys(const CrossInput& input) {
  return input.ids->to(at::kFloat).view({input.batch, 1, input.tokens, 1});
}

struct Seen {
  std::map<std::int64_t, std::vector<std::int64_t>> cross =
      {};                 // by encoder row, in the last layer
  bool computed = false;  // by this step
};

// One step of `tokens` counting keys over all layers, committed unless `upto` layers are fed only.
inline Seen run(EncoderDecoderCache& cache, std::int64_t tokens, std::int64_t rows,
                const std::optional<CrossInput>& encoder, std::optional<std::int64_t> upto = {}) {
  const std::int64_t layers = cache.self_attention_cache().layer_count();
  Step step = cache.begin_step({.tokens = tokens,
                                .batch = rows,
                                .ids = at::ones({rows, tokens}, at::kLong),
                                .cross = encoder});
  Seen seen{.computed = step.cross() != nullptr};
  const at::Tensor own = counting(step.seen(), tokens, {rows, 1, 1});
  for (std::int64_t layer = 0; layer < upto.value_or(layers); ++layer) {
    step.append(layer, own, own);
    if (step.cross() != nullptr) {
      step.cross()->append(layer, cross_keys(*encoder), cross_keys(*encoder));
    }
    const View view = step.cross_view(layer);
    EXPECT_EQ(rows % view.batch, 0);
    for (std::int64_t row = 0; row < view.batch; ++row) {
      seen.cross[row] = numbers(dense(view).keys, row);
    }
  }
  if (!upto) step.commit();
  return seen;
}

}  // namespace kvcache::testing
