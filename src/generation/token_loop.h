// Greedy decoding and sampling: one forward pass, one new token a row, until every row has ended;
// with drafts, as many tokens of one row as a draft guessed, and one more. Each token is chosen as
// it would be without a draft, by the same random numbers, so that drafts change nothing but the
// time: speculative sampling for drafts that are certain of themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "generation/draft_source.h"
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

  // Feeds the text's last token and a draft of what follows it, and chooses as long as the draft is
  // what would be chosen, and one token more. False once every row has ended.
  bool step(const std::vector<std::int64_t>& draft);
  std::vector<std::int64_t> make_draft();

  // Takes the new tokens in; false once every row has ended.
  bool take(const at::Tensor& tokens);

  const Inputs& inputs_;
  const GenerationConfig& config_;

  TextBuffer text_;
  Feed feed_;
  at::Tensor given_;           // the output's sequences begin with it
  std::int64_t first_column_;  // of what is made, in the text
  std::int64_t max_length_;
  std::optional<std::int64_t> pad_token_id_;
  LogitsProcessors processors_;
  StoppingCriteria criteria_;
  std::unique_ptr<DraftSource> drafts_;  // null: none
  std::int64_t longest_draft_ = 0;       // tokens that the cache can take back
  at::Tensor running_;                   // bool [rows]: rows that have not ended
  std::vector<at::Tensor> logits_;
  Timings timings_;
};

}  // namespace kvcache::detail
