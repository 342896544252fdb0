#include "generation/beam_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <exception>

namespace kvcache::detail {

void BeamCache::expand(std::int64_t beams) {
  if (cache_ == nullptr) return;
  if (!keeps_all_) start_ = cache_->snapshot();
  held_ = cache_->history().seen();
  const std::int64_t rows = cache_->batch_size();
  repeat(beams);
  rows_ = rows;
}

void BeamCache::follow(const at::Tensor& beams) {
  if (cache_ == nullptr || beams.equal(at::arange(beams.numel(), at::kLong))) return;
  cache_->reorder_cache(beams);
}

void BeamCache::end(const std::vector<std::int64_t>& rows, std::int64_t tokens, std::int64_t each) {
  if (rows_ > 0 && cache_->can_crop(tokens)) {
    cache_->batch_select_indices(at::tensor(rows, at::kLong));
    cache_->crop(-tokens);
    return;
  }
  if (rows_ > 0) go_back();
  repeat(each);
}

void BeamCache::undo() noexcept {
  if (rows_ == 0) return;
  try {
    go_back();
  } catch (const std::exception&) {
    cache_->reset();
  }
}

// One row of a growing cache is then held once for all.
void BeamCache::repeat(std::int64_t times) {
  if (times == 1) return;
  if (cache_->batch_size() == 1) return cache_->expand(times);
  cache_->batch_repeat_interleave(times);
}

void BeamCache::go_back() {
  if (start_) return cache_->restore(*start_);
  const std::int64_t each = cache_->batch_size() / rows_;
  cache_->batch_select_indices(at::arange(0, cache_->batch_size(), each, at::kLong));
  cache_->crop(held_ - cache_->history().seen());
}

}  // namespace kvcache::detail
