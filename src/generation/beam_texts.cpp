#include "generation/beam_texts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Leading tokens that two paths have in common.
std::int64_t common(const std::vector<Candidate>& a, const std::vector<Candidate>& b) {
  const auto same = [](const Candidate& x, const Candidate& y) { return x.token == y.token; };
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same).first - a.begin();
}

}  // namespace

std::vector<BeamText> best_texts(const BeamScorer& scorer, std::int64_t each) {
  std::vector<BeamText> best;
  for (std::int64_t row = 0; row < scorer.rows(); ++row) {
    const std::vector<FinishedBeam>& finished = scorer.finished(row);
    check_state(std::ssize(finished) >= each, "row ", row, " can go on in no more than ",
                finished.size(), " ways until it ends, but num_return_sequences = ", each,
                "; ask for fewer, or allow more tokens");
    for (std::int64_t i = 0; i < each; ++i) {
      const FinishedBeam& text = finished[index(i)];
      best.push_back({text.score, scorer.path(text)});
    }
  }
  return best;
}

std::int64_t longest(const std::vector<BeamText>& texts) {
  std::int64_t most = 0;
  for (const BeamText& text : texts) most = std::max(most, std::int64_t(std::ssize(text.path)));
  return most;
}

TokenRows token_rows(const std::vector<BeamText>& texts, const TokenRows& prompts,
                     std::int64_t pad) {
  const std::int64_t rows = std::ssize(texts), columns = longest(texts);
  at::Tensor tokens = at::full({rows, columns}, pad, at::kLong);
  at::Tensor real = at::zeros({rows, columns}, at::kBool);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<Candidate>& path = texts[index(row)].path;
    std::transform(path.begin(), path.end(), tokens.data_ptr<std::int64_t>() + row * columns,
                   [](const Candidate& made) { return made.token; });
    std::fill_n(real.data_ptr<bool>() + row * columns, path.size(), true);
  }
  const auto behind = [&](const at::Tensor& prompt, const at::Tensor& made) {
    const std::int64_t each = rows / prompt.size(0);
    return at::cat({prompt.repeat_interleave(each, 0), made.to(prompt.device())}, 1);
  };
  TokenRows result{behind(prompts.ids, tokens)};
  if (prompts.valid || !real.all().item<bool>()) {
    result.valid =
        behind(prompts.valid ? *prompts.valid : at::ones_like(prompts.ids, at::kBool), real);
  }
  return result;
}

at::Tensor scores_of(const std::vector<BeamText>& texts, at::Device device) {
  at::Tensor scores = at::zeros({std::ssize(texts)}, at::kFloat);
  std::transform(texts.begin(), texts.end(), scores.data_ptr<float>(),
                 [](const BeamText& text) { return text.score; });
  return scores.to(device);
}

at::Tensor logits_of(const std::vector<BeamText>& texts, const std::vector<at::Tensor>& steps,
                     std::int64_t beams) {
  const at::Tensor result = at::zeros({std::ssize(texts), longest(texts), steps.front().size(1)},
                                      steps.front().options());
  for (std::size_t row = 0; row < texts.size(); ++row) {
    const std::vector<Candidate>& path = texts[row].path;
    for (std::size_t step = 0; step < path.size(); ++step) {
      const std::int64_t from = step == 0 ? path[step].beam / beams : path[step].beam;
      result.select(0, std::int64_t(row)).select(0, std::int64_t(step)).copy_(steps[step][from]);
    }
  }
  return result;
}

NearestBeams nearest(const std::vector<BeamText>& texts, const std::vector<std::int64_t>& prompts,
                     const BeamScorer& scorer, std::int64_t steps) {
  const std::int64_t each = std::ssize(texts) / std::ssize(prompts);
  NearestBeams result{.beams = {}, .common = std::min(steps, longest(texts) - 1)};
  for (std::int64_t i = 0; i < std::ssize(texts); ++i) {
    const std::int64_t first = prompts[index(i / each)] * scorer.beams();
    std::int64_t nearest = 0, most = -1;
    for (std::int64_t beam = 0; beam < scorer.beams(); ++beam) {
      const std::int64_t shared = common(texts[index(i)].path, scorer.path(first + beam, steps));
      if (shared > most) nearest = beam;
      most = std::max(most, shared);
    }
    result.beams.push_back(i / each * scorer.beams() + nearest);
    result.common = std::min(result.common, most);
  }
  return result;
}

}  // namespace kvcache::detail
