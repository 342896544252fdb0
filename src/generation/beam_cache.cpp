#include "generation/beam_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <exception>
#include <numeric>

namespace kvcache::detail {
namespace {

// One row of a growing cache is then held once for all.
void repeat(std::int64_t times, Cache& cache) {
  if (times == 1) return;
  if (cache.batch_size() == 1) return cache.expand(times);
  cache.batch_repeat_interleave(times);
}

}  // namespace

std::vector<std::int64_t> prompts_of(const CachePart& part, std::int64_t beams) {
  std::vector<std::int64_t> prompts;
  prompts.reserve(part.rows.size() / static_cast<std::size_t>(beams));
  for (std::size_t i = 0; i < part.rows.size(); i += static_cast<std::size_t>(beams)) {
    prompts.push_back(part.rows[i] / beams);
  }
  return prompts;
}

void BeamCache::expand(std::int64_t beams) {
  if (cache_ == nullptr) return;
  if (!keeps_all_) start_ = cache_->snapshot();
  held_ = cache_->history().seen();
  const std::int64_t rows = cache_->batch_size();
  repeat(beams, *cache_);
  rows_ = rows;
}

void BeamCache::end(const std::vector<std::int64_t>& rows, std::int64_t tokens,
                    const std::vector<std::int64_t>& prompts, Cache& cache) const {
  if (rows_ > 0 && cache.can_crop(tokens)) {
    cache.batch_select_indices(at::tensor(rows, at::kLong));
    cache.crop(-tokens);
    return;
  }
  if (rows_ > 0) go_back(prompts, cache);
  repeat(std::ssize(rows) / std::ssize(prompts), cache);
}

void BeamCache::undo(std::vector<CachePart> parts, std::int64_t beams) noexcept {
  if (rows_ == 0) return;
  try {
    for (CachePart& part : parts) {
      part.rows = prompts_of(part, beams);
      go_back(part.rows, *part.cache);
    }
    if (!parts.empty()) return put_together(parts, *cache_);
    std::vector<std::int64_t> all(static_cast<std::size_t>(rows_));
    std::iota(all.begin(), all.end(), 0);
    go_back(all, *cache_);
  } catch (const std::exception&) {
    cache_->reset();
  }
}

void BeamCache::go_back(const std::vector<std::int64_t>& prompts, Cache& cache) const {
  if (start_) {
    cache.restore(*start_);
    if (std::ssize(prompts) < rows_) cache.batch_select_indices(at::tensor(prompts, at::kLong));
    return;
  }
  const std::int64_t each = cache.batch_size() / std::ssize(prompts);
  cache.batch_select_indices(at::arange(0, cache.batch_size(), each, at::kLong));
  cache.crop(-new_tokens(cache));
}

}  // namespace kvcache::detail
