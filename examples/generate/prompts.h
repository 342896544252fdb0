// What the program goes on from, as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/generation/generation_config.h"
#include "kvcache/text/tokenizer.h"

namespace generate_program {

struct TokenBatch {
  at::Tensor ids;                  // int64 [rows, tokens]
  std::optional<at::Tensor> mask;  // int64 [rows, tokens], 0: padding
};

// Texts to tokens, shorter ones padded on the left. An empty text is the bos token. Throws
// kvcache::ValueError for text that is not UTF-8, and an empty one where no bos token is known.
TokenBatch tokenize(const std::vector<std::string>& texts, const kvcache::Tokenizer& tokenizer,
                    const kvcache::GenerationConfig& config);

// Reads [{"role": ..., "content": ...}, ...], puts it through the chat template of the checkpoint
// in the folder `model`, with what begins the assistant's turn, and tokenizes that. Throws
// kvcache::ValueError naming what is wrong.
TokenBatch tokenize_messages(const std::filesystem::path& messages,
                             const std::filesystem::path& model,
                             const kvcache::Tokenizer& tokenizer);

// Reads {"input_ids": [[...], ...], "attention_mask": [[...], ...]}, the mask optional. Throws
// kvcache::ValueError naming what is wrong.
TokenBatch read_token_file(const std::filesystem::path& path);

}  // namespace generate_program
