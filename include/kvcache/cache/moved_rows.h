// Rows that leave a layered cache for a while and come back: see Cache::copy_rows, move_out and
// put_together. Another part of layered_cache.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/batch_operations.h"
#include "kvcache/cache/concatenate.h"
#include "kvcache/cache/layer_state.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/definitions.h"
#include "kvcache/core/visitor.h"

namespace kvcache {

namespace detail {

// Whether rows share tokens, as expand() makes them, and whether tokens are or will be packed.
class LookAtRows final : public Visitor {
 public:
  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    shared = shared || (tensor.defined() && info.token_dim && !info.batch_dim);
    packed = packed || is_of_some_tokens(info.role);
  }
  void count(std::string_view, std::int64_t&) override {}

  bool shared = false;
  bool packed = false;
};

inline LookAtRows look_at_rows(LayerStack& stack) {
  LookAtRows look;
  visit_all(stack, look);
  return look;
}

// Moves row i's tokens `columns[i]` slots on, over the row's last ones, and leaves zeros before
// them. The first pass measures; with the scratch it is all that can fail.
class MoveTokensOn final : public Visitor {
 public:
  MoveTokensOn(const std::vector<std::int64_t>& columns, Memory& memory)
      : columns_(columns), memory_(memory) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined()) return;
    can_ = can_ && !is_of_some_tokens(info.role) && info.batch_dim && info.token_dim &&
           info.writable && info.live.end <= tensor.size(*info.token_dim);
    if (!can_) return;
    const at::Tensor live = tensor.narrow(*info.token_dim, info.live.first, info.live.length());
    if (!writing_) {
      scratch_.measure(live, live.numel() / std::max<std::int64_t>(live.size(*info.batch_dim), 1));
      return;
    }
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      if (columns_[i] > 0) move(live.narrow(*info.batch_dim, row, 1), *info.token_dim, columns_[i]);
    }
  }
  void count(std::string_view, std::int64_t&) override {}

  // Whether all that the first pass saw can be moved; then the second pass does it.
  bool begin() {
    if (can_) scratch_.allocate(memory_);
    writing_ = true;
    return can_;
  }

 private:
  void move(const at::Tensor& row, std::int64_t token_dim, std::int64_t columns) const {
    const at::Tensor kept = row.narrow(token_dim, 0, row.size(token_dim) - columns);
    const at::Tensor aside = scratch_.for_like(kept);
    aside.copy_(kept);
    row.narrow(token_dim, columns, kept.size(token_dim)).copy_(aside);
    row.narrow(token_dim, 0, columns).zero_();
  }

  const std::vector<std::int64_t>& columns_;
  Memory& memory_;
  Scratch scratch_;
  bool can_ = true;
  bool writing_ = false;
};

// The same of what is known of the rows.
inline History tokens_moved_on(const History& history, const std::vector<std::int64_t>& columns) {
  History::Content content = history.content();
  const auto moved = [&](const at::Tensor& rows) {
    at::Tensor result = at::zeros_like(rows);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      const std::int64_t kept = rows.size(1) - columns[i];
      result.select(0, row)
          .narrow(0, columns[i], kept)
          .copy_(rows.select(0, row).narrow(0, 0, kept));
    }
    return result;
  };
  content.ids = moved(content.ids);
  content.valid = moved(content.valid);
  if (!history.known()) content.known = 0;
  return History(content);
}

}  // namespace detail

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE bool LayeredCache::has_fixed_buffers() const {
  for (std::int64_t i = 0; i < layer_count(); ++i) {
    if (stack_->layout(i)) return true;
  }
  return false;
}

KVCACHE_INLINE bool LayeredCache::has_bound_rows() {
  stack_->check_no_step();
  const detail::LookAtRows rows = detail::look_at_rows(*stack_);
  return has_fixed_buffers() || rows.shared || rows.packed;
}

KVCACHE_INLINE void LayeredCache::forget_tokens() noexcept {
  const std::int64_t reserved = stack_->reserved();
  stack_->reset();
  stack_->reserve(reserved);
}

KVCACHE_INLINE std::unique_ptr<Cache> LayeredCache::copy_rows(const at::Tensor& rows) {
  stack_->check_whole();
  const std::vector<std::int64_t> chosen = detail::checked_rows(rows, batch_size());
  const auto batch = static_cast<std::int64_t>(chosen.size());
  if (detail::look_at_rows(*stack_).shared) {
    std::unique_ptr<Cache> copy = fork();
    copy->batch_select_indices(rows);
    return copy;
  }
  std::vector<std::unique_ptr<Layer>> layers = empty_layers(/*pinned=*/false);
  for (std::int64_t i = 0; i < layer_count(); ++i) {
    stack_->touch_for_visit(i);
    Layer& layer = *layers[static_cast<std::size_t>(i)];
    layer.reserve(stack_->reserved());
    const detail::LayerState state = detail::join_rows(detail::chosen_rows(
        {{detail::read_state((*stack_)[i], batch_size()), batch_size(), stack_->seen(i)}}, chosen));
    detail::write_state(layer, state,
                        {.memory = *stack_->memory(),
                         .device = detail::device_of(state).value_or(at::kCPU),
                         .batch = batch});
  }
  History history = stack_->history;
  history.select(chosen);
  std::unique_ptr<LayeredCache> copy =
      with_layers(stack_->clone_without_layers(std::make_unique<Resident>()));
  copy->stack_->take(std::move(layers), std::move(history), batch);
  return copy;
}

KVCACHE_INLINE std::unique_ptr<Cache> LayeredCache::move_out() {
  stack_->check_whole();
  if (has_fixed_buffers()) {
    std::unique_ptr<Cache> moved = clone();
    forget_tokens();
    return moved;
  }
  std::vector<std::unique_ptr<Layer>> fresh = empty_layers();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    stack_->touch_for_visit(index);
    fresh[i]->reserve(stack_->reserved());
    detail::KeepRecording::of((*stack_)[index], *fresh[i]);
  }
  std::unique_ptr<LayeredCache> moved =
      with_layers(stack_->clone_without_layers(std::make_unique<Resident>()));
  History history = std::move(stack_->history);
  const std::int64_t rows = stack_->batch;
  moved->stack_->take(stack_->take(std::move(fresh), History(), 0), std::move(history), rows);
  return moved;
}

KVCACHE_INLINE void LayeredCache::put_together(const std::vector<Cache*>& parts,
                                               const at::Tensor& rows) {
  check_state(stack_->check_whole() == 0 && stack_->batch == 0,
              "caches are put together in one that holds no tokens, but this one has seen ",
              stack_->common_length(), " of ", stack_->batch, " rows; reset it first");
  std::vector<LayeredCache*> caches;
  std::vector<History> histories;
  std::int64_t all_rows = 0;
  for (Cache* part : parts) {
    check_value(part != nullptr && part != this, "a part to put together is ",
                part == nullptr ? "null" : "the cache itself");
    caches.push_back(&checked_like(*part));
    caches.back()->stack_->check_whole();
    all_rows += part->batch_size();
    histories.push_back(part->history());
  }
  const std::vector<std::int64_t> chosen = detail::checked_rows(rows, all_rows);
  const auto batch = static_cast<std::int64_t>(chosen.size());
  stack_->check_can_have(batch);
  for (LayeredCache* cache : caches) detail::check_can_move(*cache->stack_, histories);
  History history = detail::join_histories(histories);
  history.select(chosen);
  try {
    for (LayeredCache* cache : caches) cache->crop(0);
    for (std::int64_t i = 0; i < layer_count(); ++i) {
      std::vector<detail::CacheRows> held;
      for (LayeredCache* cache : caches) {
        cache->stack_->touch_for_visit(i);
        held.push_back({detail::read_state((*cache->stack_)[i], cache->batch_size()),
                        cache->batch_size(), cache->stack_->seen(i)});
      }
      LayerStack::naming(i, [&] {
        const detail::LayerState joined = detail::join_rows(detail::chosen_rows(held, chosen));
        held.clear();
        for (LayeredCache* cache : caches) (*cache->stack_)[i].reset();
        detail::write_state((*stack_)[i], joined,
                            {.memory = *stack_->memory(),
                             .device = detail::device_of(joined).value_or(at::kCPU),
                             .batch = batch});
      });
    }
  } catch (...) {
    for (LayeredCache* cache : caches) cache->forget_tokens();
    forget_tokens();
    throw;
  }
  for (LayeredCache* cache : caches) cache->forget_tokens();
  stack_->history = std::move(history);
  stack_->batch = batch;
}

KVCACHE_INLINE bool LayeredCache::move_padding_to_front(const std::vector<std::int64_t>& padding) {
  const std::int64_t seen = stack_->check_whole();
  check_value(static_cast<std::int64_t>(padding.size()) == batch_size(), "there is padding of ",
              padding.size(), " rows, but the cache has ", batch_size());
  for (const std::int64_t tokens : padding) {
    check_value(tokens >= 0 && tokens <= seen, "a row cannot have ", tokens,
                " tokens of padding among its ", seen);
  }
  for (std::int64_t i = 0; i < layer_count(); ++i) {
    const LayerSpec& spec = layer(i).spec();
    if (spec.window > 0 || (*stack_)[i].states() != nullptr) return false;
  }
  detail::MoveTokensOn move(padding, *stack_->memory());
  detail::visit_all(*stack_, move);
  History history = detail::tokens_moved_on(stack_->history, padding);
  if (!move.begin()) return false;
  detail::visit_all(*stack_, move);
  stack_->history = std::move(history);
  return true;
}

#endif

}  // namespace kvcache
