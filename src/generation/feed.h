// How a text reaches the model: what every way of decoding does between two choices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "generation/prompt.h"
#include "generation/running_rows.h"
#include "kvcache/cache/cache.h"
#include "kvcache/generation/output.h"
#include "kvcache/generation/token_rows.h"
#include "kvcache/models/language_model.h"

namespace kvcache::detail {

class Feed {
 public:
  // `cache` null: every step runs the whole text. `most_at_once`: tokens a row of the prompt in one
  // forward pass, with a cache; absent: all. Keeps references.
  Feed(const LanguageModel& model, const Prompt& prompt, Cache* cache,
       std::optional<std::int64_t> most_at_once = std::nullopt)
      : model_(model),
        prompt_(prompt),
        rows_(cache, prompt.rows(), any_forgets(model.config().layer_specs())),
        most_at_once_(most_at_once) {}

  // Of the rows that are fed.
  Cache* cache() const { return rows_.cache(); }

  // Which rows are fed. Texts and scores have all of them; of rows that have ended scores are 0.
  RunningRows& rows() { return rows_; }

  // Feeds the prompt, but for what the cache holds of it, `text` being all before the first choice.
  // Scores behind its last token, float32 [rows, vocab] on the text's device.
  at::Tensor prefill(const TokenRows& text);

  // Feeds the last `tokens` of a text of which the cache holds all before them. Scores behind each
  // of these, float32 [rows, tokens, vocab] on the text's device.
  at::Tensor next(const TokenRows& text, std::int64_t tokens = 1);

  // Feeds what `cache` does not hold of a text yet, as a prefill does. `prompts`: rows of the
  // prompt that its rows go on from, as many neighbouring ones from each.
  void fill(const TokenRows& text, const std::vector<std::int64_t>& prompts, Cache& cache);

  // Whether next() would run the whole text, as cached keys do not fit its last tokens.
  bool runs_whole_text(const TokenRows& text, std::int64_t tokens) const;

  // Takes the last tokens out of the cache, which next() fed.
  void take_back(std::int64_t tokens) {
    if (tokens > 0) cache()->crop(-tokens);
  }

  // Tokens that the prefill computed, all rows and the encoder's included.
  std::int64_t prefill_tokens() const { return prefill_tokens_; }

 private:
  // What next() feeds.
  ForwardInput last_tokens(const TokenRows& text, std::int64_t tokens) const;
  ForwardInput whole_text(const TokenRows& text, std::int64_t tokens) const;
  bool needs_whole_text(const ForwardInput& input, Cache* cache) const;

  // Runs `input`, or all of `text` where the cached keys do not fit what follows them. Scores as
  // next() returns them.
  at::Tensor forward(ForwardInput input, const TokenRows& text);

  const LanguageModel& model_;
  const Prompt& prompt_;
  RunningRows rows_;
  std::optional<std::int64_t> most_at_once_;
  std::int64_t prefill_tokens_ = 0;
};

}  // namespace kvcache::detail
