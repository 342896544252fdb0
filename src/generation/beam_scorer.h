// The bookkeeping of beam search, without a model: which texts are being written, which are
// complete, and when no better one is to be expected. The beams of a prompt row depend on nothing
// of other rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "generation/beam_candidates.h"
#include "kvcache/generation/generation_config.h"

namespace kvcache::detail {

struct BeamSettings {
  std::int64_t rows = 1;        // of the prompt
  std::int64_t beams = 2;       // of each row
  std::int64_t new_tokens = 1;  // at which every text ends
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
};

// A complete text: the beam that its last token ended, and in which step, counted from 0.
struct FinishedBeam {
  float score = 0;  // sum of log-probabilities / new tokens ^ length_penalty
  std::int64_t step = 0;
  std::int64_t beam = 0;
  std::int64_t token = 0;
};

class BeamScorer {
 public:
  explicit BeamScorer(const BeamSettings& settings);

  std::int64_t rows() const { return settings_.rows; }
  std::int64_t beams() const { return settings_.beams; }

  // Scores of the running beams, float32 [rows, beams, 1] on the CPU. At first all beams of a row
  // are the same text, and only one of them counts: the others are far below.
  at::Tensor scores() const;

  // Rows for which nothing can change any more.
  bool done(std::int64_t row) const { return rows_[index(row)].done; }

  // Takes a step: `complete`, one a candidate, says which texts end with it. False once all rows
  // are done. Throws RuntimeError naming a row that has no text to go on with and none complete.
  bool take(const Candidates& candidates, const std::vector<bool>& complete);

  std::int64_t steps() const { return static_cast<std::int64_t>(steps_.size()); }

  // Of each running beam, int64 [rows * beams] on the CPU: which one it was before the last step,
  // and the token that came in it.
  at::Tensor last_beams() const { return steps_.back().beams(); }
  at::Tensor last_tokens() const { return steps_.back().tokens(); }

  // A row's complete texts, best first, as many as beams at most.
  const std::vector<FinishedBeam>& finished(std::int64_t row) const {
    return rows_[index(row)].finished;
  }

  // For each new token of a complete text the beam that it continued, and the token.
  std::vector<Candidate> path(const FinishedBeam& text) const;

  // The same of a beam that ran after `steps` steps.
  std::vector<Candidate> path(std::int64_t beam, std::int64_t steps) const;

 private:
  struct Row {
    std::vector<float> scores;  // of running beams
    std::vector<bool> real;     // which of them are texts; others only keep a place
    std::vector<FinishedBeam> finished;
    bool done = false;
  };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  void take_row(std::int64_t row, const Candidates& candidates, const std::vector<bool>& complete);
  void add(Row& row, const Candidate& last) const;
  bool nothing_better(const Row& row, float best_running) const;
  float normalized(float score, std::int64_t new_tokens) const;

  BeamSettings settings_;
  std::vector<Row> rows_;
  std::vector<Candidates> steps_;  // the beams that went on in each step
};

}  // namespace kvcache::detail
