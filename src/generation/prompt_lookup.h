// Drafts from the text itself: what followed the last tokens when they came before.
#pragma once

#include "generation/draft_source.h"

namespace kvcache::detail {

class PromptLookup final : public DraftSource {
 public:
  // With prompt_lookup_num_tokens and max_matching_ngram_size.
  explicit PromptLookup(const GenerationConfig& config)
      : longest_(*config.prompt_lookup_num_tokens),
        largest_ngram_(config.max_matching_ngram_size.value_or(kDefaultNgram)) {}

  std::int64_t longest() const override { return longest_; }
  std::vector<std::int64_t> propose(const TokenRows& text, std::int64_t most) override;

 private:
  static constexpr std::int64_t kDefaultNgram = 2;

  std::int64_t longest_;
  std::int64_t largest_ngram_;
};

}  // namespace kvcache::detail
