#include "generation/draft_model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

namespace kvcache::detail {
namespace {

constexpr double kDefaultConfidence = 0.4;
constexpr std::int64_t kMore = 2, kFewer = 1;  // Transformers' steps of the heuristic schedule

}  // namespace

DraftModel::DraftModel(const LanguageModel& model, const GenerationConfig& config)
    : model_(model),
      config_(config),
      cache_(model.config()),
      adapts_(config.num_assistant_tokens_schedule.value_or("constant") != "constant"),
      least_confidence_(config.assistant_confidence_threshold.value_or(kDefaultConfidence)),
      longest_(config.num_assistant_tokens.value_or(kDefaultTokens)),
      wanted_(longest_) {
  cache_.activate_past_recording(longest_ + 1);
}

std::vector<std::int64_t> DraftModel::propose(const TokenRows& text, std::int64_t most) {
  at::Tensor ids = text.row(0).to(at::kCPU).unsqueeze(0);
  go_back(ids);
  std::vector<std::int64_t> draft;
  const std::int64_t tokens = std::min({most, longest_, wanted_});
  while (static_cast<std::int64_t>(draft.size()) < tokens) {
    const at::Tensor probabilities = at::softmax(scores_behind(ids), -1);
    const auto [confidence, best] = probabilities.max(-1);
    if (confidence.item<double>() < least_confidence_) break;
    draft.push_back(best.item<std::int64_t>());
    if (config_.ends_at(draft.back())) break;
    ids = at::cat({ids, at::full({1, 1}, draft.back(), at::kLong)}, 1);
  }
  drafted_ = static_cast<std::int64_t>(draft.size());
  return draft;
}

void DraftModel::note_accepted(std::int64_t tokens) {
  if (!adapts_) return;
  wanted_ = tokens == drafted_ ? std::min(wanted_ + kMore, longest_)
                               : std::max<std::int64_t>(wanted_ - kFewer, 1);
}

void DraftModel::go_back(const at::Tensor& ids) {
  const std::int64_t seen = cache_.history().seen();
  const std::int64_t most = ids.size(1) - 1;
  const std::int64_t keep = seen > 0 ? cache_.can_reuse(ids.narrow(1, 0, most)) : 0;
  if (keep == 0) {
    cache_.reset();
  } else if (keep < seen) {
    cache_.crop(keep - seen);
  }
}

at::Tensor DraftModel::scores_behind(const at::Tensor& ids) {
  const std::int64_t seen = cache_.history().seen();
  ForwardInput input{.input_ids = ids.narrow(1, seen, ids.size(1) - seen), .logits_to_keep = 1};
  if (model_.needs_whole_text(input, cache_)) {
    cache_.reset();
    input.input_ids = ids;
  }
  return model_.forward(input, &cache_).select(1, -1).select(0, 0).to(at::kCPU, at::kFloat);
}

}  // namespace kvcache::detail
