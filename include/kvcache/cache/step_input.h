// What a forward pass says of its tokens when it opens a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache {

// What a decoder's step says of its encoder's input, whole.
struct CrossInput {
  std::int64_t tokens = 0;  // a row, padding included
  std::int64_t batch = 0;   // rows; each is read by as many neighbouring rows of the decoder
  // int64 [batch, tokens]; absent (embeddings): it cannot be told whether it is the one held.
  std::optional<at::Tensor> ids = {};
  // bool or integer [batch, tokens]; 0 = padding. Absent: all real.
  std::optional<at::Tensor> valid = {};
};

struct StepInput {
  std::int64_t tokens = 0;  // new tokens a row, padding included
  std::int64_t batch = 0;   // rows
  // int64 [batch, tokens]; absent (embeddings): the history is no longer known.
  std::optional<at::Tensor> ids = {};
  // bool or integer [batch, tokens], or [batch, seen + tokens], whose first columns then replace
  // what the cache knows of its past's padding; 0 = padding. Absent: all real.
  std::optional<at::Tensor> valid = {};
  // Over an encoder-decoder cache: the encoder's input. Absent: the one whose keys are held.
  std::optional<CrossInput> cross = {};
};

namespace detail {

// Refuses counts out of range and tensors of other shapes than the counts say. Throws ValueError.
inline void check_tokens(const StepInput& input, std::int64_t seen) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const std::int64_t tokens = input.tokens, batch = input.batch;
  check_value(tokens > 0 && batch > 0, "a step needs at least one token and one row, but got ",
              tokens, " tokens and ", batch, " rows");
  check_value(tokens <= kMost && batch <= kMost / tokens, "a step of ", tokens, " tokens and ",
              batch, " rows is more than ", kMost, " tokens in all");
  if (input.ids) {
    check_value(input.ids->dim() == 2 && input.ids->size(0) == batch &&
                    input.ids->size(1) == tokens && input.ids->scalar_type() == at::kLong,
                "ids must be int64 [", batch, ", ", tokens, "], but are ", dtype_name(*input.ids),
                " ", input.ids->sizes());
  }
  if (input.valid) {
    const std::int64_t columns = input.valid->dim() == 2 ? input.valid->size(1) : -1;
    check_value(columns == tokens || columns == seen + tokens,
                "the attention mask must be [batch, tokens] = [", batch, ", ", tokens,
                "] or, with the past, [", batch, ", ", seen + tokens, "], but is ",
                input.valid->sizes());
    check_value(input.valid->size(0) == batch, "the attention mask has ", input.valid->size(0),
                " rows, but the step has ", batch);
    check_value(c10::isIntegralType(input.valid->scalar_type(), /*includeBool=*/true),
                "the attention mask must hold integers or booleans, but is ",
                dtype_name(*input.valid));
  }
}

}  // namespace detail

}  // namespace kvcache
