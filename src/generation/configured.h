// What a GenerationConfig asks for, made for one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/stopping.h"
#include "kvcache/generation/token_rows.h"

namespace kvcache::detail {

// Length at which every row ends, for a text of `length` tokens before the first new one.
// `max_positions`: the model's largest length; 0: none is known. Throws ValueError if there is no
// room for a token.
std::int64_t max_length(const GenerationConfig& config, std::int64_t length,
                        std::int64_t max_positions);

// The config's and the inputs' own ones.
StoppingCriteria stopping_criteria(const GenerationConfig& config, const Inputs& inputs,
                                   const TokenRows& text);

// What fills rows that have ended; absent where no row can end before the others.
std::optional<std::int64_t> pad_token_id(const GenerationConfig& config, const Inputs& inputs,
                                         std::int64_t rows, std::int64_t vocab_size);

}  // namespace kvcache::detail
