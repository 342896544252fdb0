// Where padding lies among a prompt's tokens, and where it would do harm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "generation/prompt.h"
#include "kvcache/cache/cache.h"
#include "kvcache/models/language_model.h"

namespace kvcache::detail {

// Index of the first false of bool [n]; n if there is none.
std::int64_t first_false(const at::Tensor& flags);

// Whether the model has layers that padding between a row's tokens would do harm to: windows, which
// count columns, so that pads would push tokens out that the row alone would still see, and states,
// which would take them in.
bool counts_columns(const LanguageModel& model);

// Refuses to go on over such padding: in the cache, or before the new tokens of rows that one row
// of a cache serves. Throws RuntimeError or ValueError.
void check_padding(const Prompt& prompt, const LanguageModel& model, const Cache& cache);

// Moves padding between a row's tokens before them, where it does no harm to any layer.
void move_padding_before(Prompt& prompt);

// Rows of different lengths over a cache of one row: padding goes behind the tokens that the cache
// holds for all of them, where the model's layers allow it.
void move_padding_behind_prefix(Prompt& prompt, const LanguageModel& model, const Cache& cache);

}  // namespace kvcache::detail
