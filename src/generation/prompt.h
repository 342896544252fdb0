// What generate() starts from: the inputs checked, with one row for each sequence to make.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kvcache/cache/cache.h"
#include "kvcache/generation/runner.h"

namespace kvcache::detail {

struct Prompt {
  // int64 [rows, tokens], contiguous, on the inputs' device. Padding lies where it does no harm:
  // before a row's tokens, or behind those that a cache of one row holds for all rows.
  at::Tensor ids;
  at::Tensor given = {};     // the same as the caller gave them
  std::int64_t longest = 0;  // columns that the text may come to, in those of `given`
  // bool [rows, tokens], or [rows, cached + tokens] as the caller gave it; absent: no padding.
  std::optional<at::Tensor> valid = {};
  bool continuation = false;  // ids follow after the tokens of a cache that holds some
  // Of a model with an encoder, one row for several neighbours of `ids`; absent: what the cache
  // holds of it.
  std::optional<EncoderInput> encoder = {};

  std::int64_t rows() const { return ids.size(0); }
  std::int64_t tokens() const { return ids.size(1); }

  // The mask for columns [first, first + count) of `ids`, the past's before them where the caller
  // gave those.
  std::optional<at::Tensor> valid_of(std::int64_t first, std::int64_t count) const {
    if (!valid) return std::nullopt;
    const std::int64_t past = valid->size(1) - tokens();
    return past > 0 ? valid->narrow(1, 0, past + first + count) : valid->narrow(1, first, count);
  }

  // The mask's last `tokens` columns.
  std::optional<at::Tensor> last_valid(std::int64_t tokens) const {
    if (!valid) return std::nullopt;
    return valid->narrow(1, valid->size(1) - tokens, tokens);
  }
};

// Checks everything about the inputs, also against the cache (null: none), and changes nothing.
// Throws ValueError; RuntimeError for a continuation that could not be exact.
Prompt make_prompt(const Inputs& inputs, const GenerationConfig& config, const LanguageModel& model,
                   Cache* cache);

// The whole text: what the cache holds (unknown tokens as padding) and the prompt.
TokenRows whole_text(const Prompt& prompt, const Cache* cache);

// What the encoder reads, a row for several neighbours of the text; absent where only the cache
// could know, and does not.
std::optional<TokenRows> encoder_rows(const Prompt& prompt, const Cache* cache);

// Whether a cache holds the keys of the prompt's encoder input already.
bool holds_encoder(const Prompt& prompt, Cache& cache);

// Makes the cache hold as many rows as the prompt has, where it holds one for all of them, and
// nothing but a prefix of the prompt. Returns the prefix's length, always
// less than the prompt's. Crops where that is exact, which leaves the keys of the same encoder
// input, else resets. A continuation keeps all: 0. Throws RuntimeError if the cache's tokens are
// not known, or if its rows are fixed; nothing has changed then.
std::int64_t keep_common_prefix(const Prompt& prompt, Cache& cache);

}  // namespace kvcache::detail
