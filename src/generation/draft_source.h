// Guesses at how a text goes on, for the model to check several tokens in one forward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/generation/runner.h"
#include "kvcache/generation/token_rows.h"

namespace kvcache::detail {

class DraftSource {
 public:
  DraftSource() = default;
  DraftSource(const DraftSource&) = delete;
  DraftSource& operator=(const DraftSource&) = delete;
  virtual ~DraftSource() = default;

  // Tokens that a draft has at most, ever.
  virtual std::int64_t longest() const = 0;

  // Up to `most` tokens that may follow a text of one row; none: no idea.
  virtual std::vector<std::int64_t> propose(const TokenRows& text, std::int64_t most) = 0;

  // How many tokens of the last draft the model would have chosen.
  virtual void note_accepted(std::int64_t /*tokens*/) {}
};

// Tokens that a draft has at most with this config, from the text or an assistant model; absent:
// nothing drafts.
std::optional<std::int64_t> longest_draft(const GenerationConfig& config,
                                          const LanguageModel* assistant);

// What the config and the inputs ask for; null: nothing. Throws ValueError for what cannot go
// together: two sources, several rows, no cache, a model of another vocabulary.
std::unique_ptr<DraftSource> make_draft_source(const GenerationConfig& config, const Inputs& inputs,
                                               const LanguageModel& model, std::int64_t rows);

}  // namespace kvcache::detail
