// Greedy decoding and sampling: one forward pass, one new token a row, until every row has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "generation/feed.h"
#include "generation/prompt.h"
#include "generation/text_buffer.h"
#include "kvcache/generation/runner.h"

namespace kvcache::detail {

class TokenLoop {
 public:
  // `cache` null: every step runs the whole text. Throws ValueError for lengths, a generator or a
  // pad token that cannot work; nothing has changed then.
  TokenLoop(const LanguageModel& model, const Inputs& inputs, const GenerationConfig& config,
            const Prompt& prompt, Cache* cache);

  // Once. Output without the cache.
  Output run();

 private:
  at::Tensor choose(const at::Tensor& logits);
  // Takes the new tokens in; false once every row has ended.
  bool take(const at::Tensor& tokens);

  const Inputs& inputs_;
  const GenerationConfig& config_;

  TextBuffer text_;
  Feed feed_;
  std::int64_t first_column_;  // of the output's sequences in the text
  std::int64_t max_length_;
  std::optional<std::int64_t> pad_token_id_;
  LogitsProcessors processors_;
  StoppingCriteria criteria_;
  at::Tensor running_;  // bool [rows]: rows that have not ended
  std::vector<at::Tensor> logits_;
  Timings timings_;
};

}  // namespace kvcache::detail
