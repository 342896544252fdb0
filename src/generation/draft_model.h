// Drafts of a smaller model with a cache of its own.
#pragma once

#include "generation/draft_source.h"
#include "kvcache/cache/dynamic_cache.h"

namespace kvcache::detail {

class DraftModel final : public DraftSource {
 public:
  static constexpr std::int64_t kDefaultTokens = 20;  // of a draft, without num_assistant_tokens

  // With num_assistant_tokens, its schedule and assistant_confidence_threshold. Keeps references.
  DraftModel(const LanguageModel& model, const GenerationConfig& config);

  std::int64_t longest() const override { return longest_; }

  // Its best tokens, up to the first that it is not sure of, or that ends a text.
  std::vector<std::int64_t> propose(const TokenRows& text, std::int64_t most) override;
  void note_accepted(std::int64_t tokens) override;

 private:
  // Makes the cache hold a text's first tokens as far as it can, and no others.
  void go_back(const at::Tensor& ids);

  // Scores behind the last of ids [1, n], of which the cache holds the first ones; float32 [vocab].
  at::Tensor scores_behind(const at::Tensor& ids);

  const LanguageModel& model_;
  const GenerationConfig& config_;
  DynamicCache cache_;
  bool adapts_;
  double least_confidence_;
  std::int64_t longest_;
  std::int64_t wanted_;       // tokens of the next draft
  std::int64_t drafted_ = 0;  // tokens of the last one
};

}  // namespace kvcache::detail
