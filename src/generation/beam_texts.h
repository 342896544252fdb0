// What a beam search returns: its best texts, and what belongs to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "generation/beam_scorer.h"
#include "kvcache/generation/token_rows.h"

namespace kvcache::detail {

struct BeamText {
  float score = 0;
  std::vector<Candidate> path;  // for each new token the beam that it continued, and the token
};

// The best `each` texts of every row, best first. Throws RuntimeError naming a row that has fewer.
std::vector<BeamText> best_texts(const BeamScorer& scorer, std::int64_t each);

// New tokens of the longest one.
std::int64_t longest(const std::vector<BeamText>& texts);

// The texts behind their prompts, of which each begins as many neighbouring texts; padding, `pad`,
// fills up the shorter ones.
TokenRows token_rows(const std::vector<BeamText>& texts, const TokenRows& prompts,
                     std::int64_t pad);

// float32 [texts] on the device.
at::Tensor scores_of(const std::vector<BeamText>& texts, at::Device device);

// float32 [texts, longest, vocab]: of what each step scored, [prompts, vocab] in the first one and
// [prompts * beams, vocab] then, the beams that the texts went through; 0 behind a text's end.
at::Tensor logits_of(const std::vector<BeamText>& texts, const std::vector<at::Tensor>& steps,
                     std::int64_t beams);

// The beams, as they were after a number of steps, that have most in common with texts.
struct NearestBeams {
  std::vector<std::int64_t> beams;  // one a text, of its own prompt, counted through these prompts
  std::int64_t common = 0;          // new tokens that each shares with its text, at least
};

// `texts`: of these prompts, as many of each.
NearestBeams nearest(const std::vector<BeamText>& texts, const std::vector<std::int64_t>& prompts,
                     const BeamScorer& scorer, std::int64_t steps);

}  // namespace kvcache::detail
