// Beam search and beam sampling: of all texts that the scores of a step allow, as many as there are
// beams go on, a row of the model's batch each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "generation/beam_cache.h"
#include "generation/beam_scorer.h"
#include "generation/beam_texts.h"
#include "generation/feed.h"
#include "generation/prompt.h"
#include "generation/text_buffer.h"
#include "kvcache/generation/runner.h"

namespace kvcache::detail {

class BeamLoop {
 public:
  // `cache` null: every step runs the whole texts. Throws ValueError for what cannot go together;
  // nothing has changed then.
  BeamLoop(const LanguageModel& model, const Inputs& inputs, const GenerationConfig& config,
           const Prompt& prompt, Cache* cache);

  // Once. Output without the cache, which ends up holding the texts returned.
  Output run();

 private:
  // Goes on with a row of the model's batch for each beam.
  void expand();

  // Feeds the newest token of every beam, and takes what comes of it; false as take().
  bool step();

  // Takes the step that these scores, float32 [rows, vocab], ask for; false once nothing better is
  // to be expected.
  bool take(const at::Tensor& logits);
  Candidates propose(const at::Tensor& logits) const;
  std::vector<bool> complete(const Candidates& candidates) const;

  // Lets the beams of prompts that are done leave the batch.
  void keep_running();

  // Makes the cache hold the best texts but their last token, or padding.
  void hold(const std::vector<BeamText>& best, const TokenRows& texts);

  // The same in `cache`, which holds the beams of `prompts`.
  void hold(const std::vector<BeamText>& best, const TokenRows& texts,
            const std::vector<std::int64_t>& prompts, Cache& cache);

  const Inputs& inputs_;
  const GenerationConfig& config_;

  TokenRows prompt_;  // the whole text before the first new token
  TextBuffer text_;   // of each beam, once there are any
  Feed feed_;
  BeamCache cache_;
  at::Tensor given_;           // the output's sequences begin with it, one for its texts
  std::int64_t first_column_;  // of what is made, in the texts
  std::int64_t max_length_;
  std::int64_t beams_;
  std::int64_t returned_;  // texts of each row
  std::optional<std::int64_t> pad_token_id_;
  LogitsProcessors processors_;
  StoppingCriteria criteria_;
  BeamScorer scorer_;
  std::vector<at::Tensor> logits_;
  Timings timings_;
};

}  // namespace kvcache::detail
