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

// Refuses to go on over padding between a row's tokens where layers forget: a window, which counts
// columns, would lose tokens to it that the row alone would still see, and a state would take it
// in. It may lie in the cache, or before the new tokens of rows that one row of a cache serves.
// Throws RuntimeError or ValueError.
void check_padding(const Prompt& prompt, const LanguageModel& model, const Cache& cache);

// Moves padding between a row's tokens before them, where it does no harm to any layer.
void move_padding_before(Prompt& prompt);

// Rows of which the cache holds the first tokens, in whatever columns: puts them into these
// columns, so that they are found there, and the rest behind. Padding comes between the two where
// rests are of different lengths; where it would do harm, or the cache lacks room, nothing changes.
void go_on_from_rows(Prompt& prompt, const LanguageModel& model, const Cache& cache);

// Rows of different lengths over a cache of one row: padding goes behind the tokens that the cache
// holds for all of them, where the model's layers allow it.
void move_padding_behind_prefix(Prompt& prompt, const LanguageModel& model, const Cache& cache);

}  // namespace kvcache::detail
