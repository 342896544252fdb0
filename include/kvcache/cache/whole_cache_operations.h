// What a layered cache does as a whole beyond steps and rows: fork over rows, join, go back to
// marks, plan. The second half of layered_cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/cache/concatenate.h"
#include "kvcache/cache/layer_state.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/definitions.h"

namespace kvcache {

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE std::int64_t LayeredCache::reusable_prefix(std::int64_t length) const {
  const std::int64_t seen = stack_->check_whole();
  check_value(length >= 0 && length <= seen, "a prefix of ", length, " tokens was asked for, but ",
              seen, " were seen");
  // A layer that cannot keep so much asks the others for less.
  for (std::int64_t i = 0; i < stack_->size();) {
    const std::int64_t reusable = (*stack_)[i].reusable_prefix(length);
    i = reusable == length ? i + 1 : 0;
    length = reusable;
    if (length == 0) return 0;
  }
  return length;
}

KVCACHE_INLINE CachePlan LayeredCache::plan(const PlanInput& input) const {
  for (const std::int64_t number : {input.batch, input.tokens}) {
    check_value(number >= 1 && number <= kMostTokens, "a plan is for 1 to ", kMostTokens,
                " rows and tokens, not ", number);
  }
  check_value(input.cross_tokens == 0 && input.cross_batch == 0,
              "the plan has an encoder's output, but the cache no encoder's side; make an "
              "EncoderDecoderCache");
  check_value(input.tokens <= capacity().value_or(input.tokens), "a plan for ", input.tokens,
              " tokens: the cache is made for ", capacity().value_or(0), " at most");
  check_value(stack_->size() > 0,
              "a plan needs the layers of a model: make the cache from the model's config");
  CachePlan plan;
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    const Layer& layer = (*stack_)[i];
    const std::optional<std::int64_t> bytes = layer.planned_bytes(input);
    check_value(bytes.has_value(), "the spec of layer ", i, " (", layer.spec().type,
                ") does not say how large what it holds is: heads, head sizes, sizes of states");
    plan.layers.push_back(*bytes);
    plan.total += *bytes;
  }
  return plan;
}

KVCACHE_INLINE LayeredCache& LayeredCache::checked_like(Cache& other) const {
  check_value(other.kind() == kind_, "a cache of kind '", other.kind(),
              "' cannot go with one of kind '", kind_, "'");
  auto* like = dynamic_cast<LayeredCache*>(&other);
  check_value(like != nullptr && like->layer_count() == layer_count(), "this cache has ",
              layer_count(), " layers, but the other has ",
              like != nullptr ? like->layer_count() : 0);
  for (std::int64_t i = 0; i < layer_count(); ++i) {
    check_value(like->layer(i).spec() == layer(i).spec() &&
                    like->layer(i).get_max_length() == layer(i).get_max_length(),
                "layer ", i, " (", described(layer(i).spec()),
                ") is another than in the other cache: ", described(like->layer(i).spec()));
  }
  return *like;
}

KVCACHE_INLINE std::vector<std::unique_ptr<Layer>> LayeredCache::empty_layers(bool pinned) const {
  std::vector<std::unique_ptr<Layer>> layers;
  for (std::int64_t i = 0; i < stack_->size(); ++i) layers.push_back(stack_->make_like(i, pinned));
  return layers;
}

KVCACHE_INLINE LayeredCache& LayeredCache::checked_mark(Cache& other) const {
  auto* mark = dynamic_cast<LayeredCache*>(&other);
  const bool all_made = mark == nullptr || (mark->layer_count() > 0 && layer_count() > 0);
  return all_made || other.kind() != kind_ ? checked_like(other) : *mark;
}

KVCACHE_INLINE std::vector<std::unique_ptr<Layer>> LayeredCache::layers_holding(
    LayeredCache& held) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (std::int64_t i = 0; i < held.layer_count(); ++i) {
    held.stack_->touch_for_visit(i);
    Layer& marked = (*held.stack_)[i];
    if (!stack_->has(i)) {
      layers.push_back(marked.fork());
      continue;
    }
    stack_->touch_for_visit(i);
    if (!stack_->layout(i)) {
      layers.push_back(marked.fork());
    } else {
      layers.push_back(stack_->make_like(i));  // its own slots, whatever those of the mark
      LayerStack::naming(i, [&] {
        const detail::LayerState state = detail::read_state(marked, held.batch_size());
        detail::write_state(*layers.back(), state,
                            {.memory = *stack_->memory(),
                             .device = detail::device_of(state).value_or(at::kCPU),
                             .batch = held.batch_size()});
      });
    }
    detail::KeepRecording::of((*stack_)[i], *layers.back());
  }
  return layers;
}

KVCACHE_INLINE void LayeredCache::restore(const Snapshot& mark) {
  stack_->check_no_step();
  LayeredCache& held = checked_mark(mark.state());
  held.stack_->check_whole();
  std::vector<std::unique_ptr<Layer>> layers = layers_holding(held);
  stack_->take(std::move(layers), held.history(), held.batch_size());
}

KVCACHE_INLINE std::unique_ptr<Cache> LayeredCache::concatenate(const std::vector<Cache*>& others) {
  std::vector<LayeredCache*> caches{this};
  for (Cache* other : others) {
    check_value(other != nullptr, "cache ", caches.size(), " of ", others.size() + 1,
                " to join is null");
    caches.push_back(&checked_like(*other));
  }
  std::vector<History> histories;
  std::int64_t batch = 0;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    caches[i]->stack_->check_whole();
    check_value(caches[i]->batch_size() > 0, "cache ", i, " of ", caches.size(),
                " has no rows to join: nothing was fed to it");
    histories.push_back(caches[i]->history());
    batch += caches[i]->batch_size();
  }
  for (LayeredCache* cache : caches) detail::check_can_move(*cache->stack_, histories);
  std::vector<std::unique_ptr<Layer>> layers = empty_layers(/*pinned=*/false);
  for (std::int64_t i = 0; i < layer_count(); ++i) {
    std::vector<detail::CacheRows> rows;
    for (LayeredCache* cache : caches) {
      cache->stack_->touch_for_visit(i);
      rows.push_back({detail::read_state((*cache->stack_)[i], cache->batch_size()),
                      cache->batch_size(), cache->stack_->seen(i)});
    }
    LayerStack::naming(i, [&] {
      const detail::LayerState joined = detail::join_rows(rows);
      detail::write_state(*layers[static_cast<std::size_t>(i)], joined,
                          {.memory = *stack_->memory(),
                           .device = detail::device_of(joined).value_or(at::kCPU),
                           .batch = batch});
    });
  }
  auto result = with_layers(stack_->clone_without_layers(std::make_unique<Resident>()));
  result->stack_->take(std::move(layers), detail::join_histories(histories), batch);
  return result;
}

KVCACHE_INLINE void LayeredCache::expand(std::int64_t rows) {
  stack_->check_whole();
  check_value(rows >= 1 && rows <= kMostRepeats, "a row can be expanded to 1 to ", kMostRepeats,
              " rows, not ", rows);
  check_state(stack_->batch <= 1, "expand(", rows, ") takes a cache of one row, but this one has ",
              stack_->batch, "; use batch_repeat_interleave, or select a row first");
  if (stack_->batch == 0 || rows == 1) return;
  stack_->check_can_have(rows);
  const std::vector<std::int64_t> same(static_cast<std::size_t>(rows), 0);
  std::vector<std::unique_ptr<Layer>> layers;
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    stack_->touch_for_visit(i);
    layers.push_back((*stack_)[i].fork());
    layers.back()->share_rows();
    detail::SelectRows select(same, *stack_->memory());
    layers.back()->visit(select);
    select.swap();
    layers.back()->visit(select);
  }
  History history = stack_->history;
  history.select(same);
  stack_->take(std::move(layers), std::move(history), rows);
}

#endif

}  // namespace kvcache
