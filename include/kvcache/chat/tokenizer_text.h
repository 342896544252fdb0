// A tokenizer for generate(): streamed text and stop strings.
#pragma once

#include "kvcache/generation/running_text.h"
#include "kvcache/text/tokenizer.h"

namespace kvcache {

// Texts decoded by `tokenizer`, whose vocabulary they keep alive.
MakeRunningText running_text(const Tokenizer& tokenizer, DecodeOptions options = {});

}  // namespace kvcache
