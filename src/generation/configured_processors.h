// The logits processors that a GenerationConfig asks for, made for one call.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/token_rows.h"

namespace kvcache::detail {

// What a call starts from.
struct ProcessorStart {
  TokenRows text;                 // before the first new token
  std::optional<TokenRows> read;  // what the encoder reads, or `text`; absent where not known
  std::int64_t max_length;        // of the text in columns, padding included
  std::int64_t vocab_size;
};

// In Transformers' order: the config's, then `given` ones, then warpers if it samples, then
// renormalization. A given one takes the place of one of the config's before it if that is of the
// same class. Throws ValueError for ids outside of the vocabulary and what else cannot work.
LogitsProcessors logits_processors(const GenerationConfig& config, const LogitsProcessors& given,
                                   const ProcessorStart& start);

}  // namespace kvcache::detail
