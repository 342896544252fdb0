#include "generation/running_rows.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace kvcache::detail {
namespace {

constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

at::Tensor indices(const std::vector<std::int64_t>& rows) { return at::tensor(rows, at::kLong); }

}  // namespace

ForwardInput columns_of(const TokenRows& text, std::int64_t first, std::int64_t count) {
  ForwardInput input{.input_ids = text.ids.narrow(1, first, count)};
  if (text.valid) input.attention_mask = text.valid->narrow(1, first, count);
  return input;
}

EncoderInput rows_of(const EncoderInput& encoder, const std::vector<std::int64_t>& rows) {
  const auto of = [&](const at::Tensor& all) {
    return all.index_select(0, indices(rows).to(all.device()));
  };
  EncoderInput result{.input_ids = of(encoder.input_ids)};
  if (encoder.attention_mask) result.attention_mask = of(*encoder.attention_mask);
  return result;
}

void put_together(const std::vector<CachePart>& parts, Cache& cache) {
  std::vector<Cache*> caches;
  std::size_t rows = 0;
  for (const CachePart& part : parts) rows += part.rows.size();
  std::vector<std::int64_t> places(rows);
  std::int64_t place = 0;
  for (const CachePart& part : parts) {
    caches.push_back(part.cache.get());
    for (const std::int64_t row : part.rows) places[static_cast<std::size_t>(row)] = place++;
  }
  cache.put_together(caches, indices(places));
}

RunningRows::~RunningRows() {
  try {
    put_together();
  } catch (...) {
    return;  // the cache holds no tokens; what led here is being thrown
  }
}

void RunningRows::keep(const at::Tensor& running, std::int64_t length) {
  const at::Tensor host = running.to(at::kCPU).contiguous();
  const bool* runs = host.const_data_ptr<bool>();
  if (!some_ended_ && std::all_of(runs, runs + rows_, [](bool row) { return row; })) return;
  std::vector<std::int64_t> ended, still;
  if (!some_ended_) {
    for (std::int64_t row = 0; row < rows_; ++row) running_.push_back(row);
    ends_.assign(static_cast<std::size_t>(rows_), kNoEnd);
    masked_ = cache_ != nullptr && !pads_do_harm_ && cache_->has_bound_rows();
    some_ended_ = true;
  }
  for (const std::int64_t row : running_) (runs[row] ? still : ended).push_back(row);
  if (ended.empty()) return;
  if (cache_ != nullptr && !masked_) let_go(ended, still);
  for (const std::int64_t row : ended) ends_[static_cast<std::size_t>(row)] = length - 1;
  running_ = std::move(still);
}

// Of rows that are fed: where they lie among these.
std::vector<std::int64_t> RunningRows::places(const std::vector<std::int64_t>& rows) const {
  std::vector<std::int64_t> result;
  result.reserve(rows.size());
  for (const std::int64_t row : rows) {
    result.push_back(std::lower_bound(running_.begin(), running_.end(), row) - running_.begin());
  }
  return result;
}

// Both lists hold rows that are fed so far.
void RunningRows::let_go(const std::vector<std::int64_t>& ended,
                         const std::vector<std::int64_t>& running) {
  if (!moved_) moved_ = cache_->move_out();
  CachePart part{.cache = moved_->copy_rows(indices(places(ended))), .rows = ended};
  ended_.reserve(ended_.size() + 1);
  moved_->batch_select_indices(indices(places(running)));
  ended_.push_back(std::move(part));
}

ForwardInput RunningRows::fed(const TokenRows& text, std::int64_t first, std::int64_t count) const {
  ForwardInput input = columns_of(text, first, count);
  if (!some_ended_) return input;
  const at::Device device = text.ids.device();
  if (masked_) {
    const at::Tensor real = at::arange(first, first + count, text.ids.options())
                                .lt(indices(ends_).to(device).unsqueeze(1));
    input.attention_mask = input.attention_mask ? input.attention_mask->logical_and(real) : real;
    return input;
  }
  const at::Tensor rows = indices(running_).to(device);
  input.input_ids = input.input_ids.index_select(0, rows);
  if (text.valid) input.attention_mask = input.attention_mask->index_select(0, rows);
  return input;
}

at::Tensor RunningRows::fed(const at::Tensor& rows) const {
  if (!some_ended_) return rows;
  const at::Tensor chosen = rows.index_select(0, indices(running_)).contiguous();
  const auto* first = chosen.const_data_ptr<std::int64_t>();
  return indices(places({first, first + chosen.numel()}));
}

std::optional<EncoderInput> RunningRows::fed(const std::optional<EncoderInput>& encoder) const {
  if (!encoder || !some_ended_ || masked_) return encoder;
  const std::int64_t each = rows_ / encoder->input_ids.size(0);
  std::vector<std::int64_t> chosen;
  for (const std::int64_t row : running_) chosen.push_back(row / each);
  return rows_of(*encoder, chosen);
}

at::Tensor RunningRows::spread(const at::Tensor& scores) const {
  if (!some_ended_) return scores;
  if (masked_) return without_ended(scores);
  std::vector<std::int64_t> shape = scores.sizes().vec();
  shape[0] = rows_;
  return at::zeros(shape, scores.options())
      .index_copy_(0, indices(running_).to(scores.device()), scores);
}

at::Tensor RunningRows::without_ended(const at::Tensor& scores) const {
  if (!some_ended_) return scores;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(scores.dim()), 1);
  shape[0] = rows_;
  return scores.masked_fill(indices(ends_).ne(kNoEnd).to(scores.device()).view(shape), 0);
}

void RunningRows::put_together() {
  if (masked_) return move_padding();
  if (moved_) detail::put_together(take_parts(), *cache_);
}

std::vector<CachePart> RunningRows::take_parts() {
  std::vector<CachePart> parts;
  if (!moved_) return parts;
  parts.reserve(1 + ended_.size());
  parts.push_back({std::move(moved_), running_});
  std::move(ended_.begin(), ended_.end(), std::back_inserter(parts));
  ended_.clear();
  return parts;
}

// The padding that ended rows got goes before their tokens, if it can.
void RunningRows::move_padding() {
  masked_ = false;
  const std::int64_t seen = cache_->history().seen();
  std::vector<std::int64_t> padding;
  for (const std::int64_t end : ends_) padding.push_back(std::max<std::int64_t>(seen - end, 0));
  cache_->move_padding_to_front(padding);
}

}  // namespace kvcache::detail
