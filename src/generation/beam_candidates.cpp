#include "generation/beam_candidates.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kvcache/generation/sampler.h"

namespace kvcache::detail {
namespace {

at::Tensor column(const std::vector<Candidate>& list, std::int64_t Candidate::*member) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(list.size())}, at::kLong);
  std::transform(list.begin(), list.end(), result.data_ptr<std::int64_t>(),
                 [&](const Candidate& candidate) { return candidate.*member; });
  return result;
}

// `best` [rows, each] and where they stand in scores [rows, beams * vocab].
Candidates listed(const at::Tensor& best, const at::Tensor& places, const at::Tensor& scores) {
  const at::Tensor best_host = best.to(at::kCPU).contiguous();
  const at::Tensor places_host = places.to(at::kCPU).contiguous();
  const auto* score = best_host.const_data_ptr<float>();
  const auto* place = places_host.const_data_ptr<std::int64_t>();
  const std::int64_t rows = scores.size(0), beams = scores.size(1), vocab = scores.size(2);
  Candidates result{.each = best.size(1)};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < result.each; ++i, ++score, ++place) {
      result.list.push_back({*score, row * beams + *place / vocab, *place % vocab});
    }
  }
  return result;
}

}  // namespace

at::Tensor Candidates::beams() const { return column(list, &Candidate::beam); }
at::Tensor Candidates::tokens() const { return column(list, &Candidate::token); }

Candidates best_candidates(const at::Tensor& scores, std::int64_t each) {
  const auto [best, places] = scores.flatten(1).topk(each);
  check_rows(best.select(1, 0));
  return listed(best, places, scores);
}

Candidates drawn_candidates(const at::Tensor& scores, std::int64_t each,
                            const at::Generator& generator) {
  const at::Tensor flat = scores.flatten(1);
  const at::Tensor probabilities = flat.softmax(-1);
  check_rows(probabilities.select(1, 0));
  const at::Tensor drawn = probabilities.multinomial(each, /*replacement=*/false, generator);
  const auto [best, order] = flat.gather(1, drawn).sort(-1, /*descending=*/true);
  return listed(best, drawn.gather(1, order), scores);
}

}  // namespace kvcache::detail
