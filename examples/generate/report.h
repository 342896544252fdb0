// What the program prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/output.h"
#include "kvcache/generation/running_text.h"
#include "kvcache/text/tokenizer.h"

namespace generate_program {

using MaybeTokenizer = std::optional<kvcache::Tokenizer>;

// One row's text as it becomes known; without a tokenizer, its ids, each followed by a space.
kvcache::MakeRunningText shown_text(const MaybeTokenizer& tokenizer);

// How generation went, beside its output.
struct Report {
  kvcache::GenerationConfig config = {};
  MaybeTokenizer tokenizer = {};
  std::int64_t prompt_tokens = 0;  // columns
  std::int64_t given_tokens = 0;   // of all rows, and of an encoder's input
  double load_s = 0;
};

// The new text of each row without its end token; ids, separated by spaces, without a tokenizer.
std::vector<std::string> texts(const Report& report, const at::Tensor& sequences);

// One line of JSON, as the program's manual describes it.
std::string json_report(const Report& report, const kvcache::Output& output);

// One line: tokens, tokens/s, the cache's kind and bytes.
std::string summary(const Report& report, const kvcache::Output& output);

}  // namespace generate_program
