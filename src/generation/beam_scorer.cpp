#include "generation/beam_scorer.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

// Of a beam that only keeps a place: far below the score of any text.
constexpr float kNoText = -1e9F;

}  // namespace

BeamScorer::BeamScorer(const BeamSettings& settings)
    : settings_(settings), rows_(index(settings.rows)) {
  for (Row& row : rows_) {
    row.scores.assign(index(settings.beams), 0);
    row.real.assign(index(settings.beams), false);
    row.real.front() = true;
  }
}

at::Tensor BeamScorer::scores() const {
  at::Tensor result = at::full({settings_.rows, settings_.beams, 1}, kNoText, at::kFloat);
  auto* score = result.data_ptr<float>();
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < row.real.size(); ++i, ++score) {
      if (row.real[i]) *score = row.scores[i];
    }
  }
  return result;
}

bool BeamScorer::take(const Candidates& candidates, const std::vector<bool>& complete) {
  steps_.push_back({.each = settings_.beams});
  for (std::int64_t row = 0; row < settings_.rows; ++row) take_row(row, candidates, complete);
  return std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.done; });
}

void BeamScorer::take_row(std::int64_t row, const Candidates& candidates,
                          const std::vector<bool>& complete) {
  Row& state = rows_[index(row)];
  const std::size_t first = index(row * candidates.each), beams = index(settings_.beams);
  std::vector<Candidate> running;
  for (std::size_t i = first; i < first + index(candidates.each); ++i) {
    const Candidate& candidate = candidates.list[i];
    const std::size_t beam = index(candidate.beam % settings_.beams);
    if (!state.real[beam] || !std::isfinite(candidate.score)) continue;
    if (!complete[i]) {
      if (running.size() < beams) running.push_back(candidate);
    } else if (i < first + beams && !state.done) {
      add(state, candidate);
    }
  }
  if (!state.done) {
    check_state(!running.empty() || !state.finished.empty(), "the scores of row ", row,
                " leave no token to choose: none goes on from a text of its beams");
    state.done = running.empty() || nothing_better(state, running.front().score);
  }
  state.scores.clear();
  for (const Candidate& beam : running) state.scores.push_back(beam.score);
  state.real.assign(beams, false);
  std::fill_n(state.real.begin(), running.size(), true);
  state.scores.resize(beams, kNoText);
  running.resize(beams, candidates.list[first]);
  auto& all = steps_.back().list;
  all.insert(all.end(), running.begin(), running.end());
}

// Of equal scores the earlier text stays before the later one.
void BeamScorer::add(Row& row, const Candidate& last) const {
  const FinishedBeam text{normalized(last.score, steps()), steps() - 1, last.beam, last.token};
  const auto better = [](const FinishedBeam& a, const FinishedBeam& b) {
    return a.score > b.score;
  };
  row.finished.insert(std::upper_bound(row.finished.begin(), row.finished.end(), text, better),
                      text);
  if (row.finished.size() > index(settings_.beams)) row.finished.pop_back();
}

bool BeamScorer::nothing_better(const Row& row, float best_running) const {
  if (row.finished.size() < index(settings_.beams)) return false;
  if (settings_.early_stopping == EarlyStopping::yes) return true;
  // Under a positive penalty a score gets better with the length that divides it.
  const bool at_the_longest =
      settings_.early_stopping == EarlyStopping::never && settings_.length_penalty > 0;
  const std::int64_t length = at_the_longest ? settings_.new_tokens : steps();
  return normalized(best_running, length) <= row.finished.back().score;
}

float BeamScorer::normalized(float score, std::int64_t new_tokens) const {
  return score /
         static_cast<float>(std::pow(static_cast<double>(new_tokens), settings_.length_penalty));
}

std::vector<Candidate> BeamScorer::path(const FinishedBeam& text) const {
  std::vector<Candidate> result = path(text.beam, text.step);
  result.push_back({.score = text.score, .beam = text.beam, .token = text.token});
  return result;
}

std::vector<Candidate> BeamScorer::path(std::int64_t beam, std::int64_t steps) const {
  std::vector<Candidate> result;
  for (std::int64_t step = steps; step > 0; --step) {
    result.push_back(steps_[index(step - 1)].list[index(beam)]);
    beam = result.back().beam;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace kvcache::detail
