// A cache that is a list of layers and a placement. The dynamic cache and, with other layer kinds,
// every cache of one stack of layers is this class with a constructor of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/batch_operations.h"
#include "kvcache/cache/cache.h"
#include "kvcache/cache/check_layers.h"
#include "kvcache/cache/layer_stack.h"
#include "kvcache/cache/step.h"
#include "kvcache/core/definitions.h"

namespace kvcache {

class EncoderDecoderCache;

class LayeredCache : public Cache {
 public:
  LayeredCache(std::string_view kind, LayerStack stack)
      : kind_(kind), stack_(std::make_unique<LayerStack>(std::move(stack)), "a cache") {}

  std::string_view kind() const override;
  const History& history() const override { return stack_->history; }
  std::int64_t batch_size() const override { return stack_->batch; }

  bool has_previous_state(std::optional<std::int64_t> layer = std::nullopt,
                          std::int64_t index = 0) const override;

  // Layers made so far.
  std::int64_t layer_count() const { return stack_->size(); }
  const Layer& layer(std::int64_t index) const {
    check_value(stack_->has(index), "there is no layer ", index, ": this cache has ",
                stack_->size(), " layers");
    return (*stack_)[index];
  }

  Step begin_step(const StepInput& input) override;

  KeyValue update(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) override {
    KeyValue joined;
    take_in(keys, values, layer, &joined);
    return joined;
  }

  View append(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer) override {
    return take_in(keys, values, layer, nullptr);
  }

  std::int64_t get_seq_length(std::int64_t layer = 0) const override { return stack_->seen(layer); }

  std::pair<std::int64_t, std::int64_t> get_mask_sizes(std::int64_t tokens,
                                                       std::int64_t layer) const override;

  std::int64_t get_max_length(std::optional<std::int64_t> layer = std::nullopt) const override {
    if (layer) {
      stack_->check_index(*layer);
      return stack_->has(*layer) ? (*stack_)[*layer].get_max_length() : -1;
    }
    std::int64_t longest = -1;
    for (std::int64_t i = 0; i < stack_->size(); ++i) {
      longest = std::max(longest, (*stack_)[i].get_max_length());
    }
    return longest;
  }

  std::optional<std::int64_t> capacity() const override;

  std::int64_t reusable_prefix(std::int64_t length) const override;

  bool can_crop(std::int64_t tokens) const override;

  void crop(std::int64_t minus_tokens) override;
  void activate_past_recording(std::optional<std::int64_t> max_tokens = std::nullopt) override;

  void reset() override;

  void check_fits(const std::vector<LayerSpec>& layers, at::ScalarType dtype) override;

  void reserve(std::int64_t tokens) override;

  void batch_select_indices(const at::Tensor& rows) override;

  void reorder_cache(const at::Tensor& beam_idx) override;

  void batch_repeat_interleave(std::int64_t repeats) override;

  std::unique_ptr<Cache> concatenate(const std::vector<Cache*>& others) override;
  std::unique_ptr<Cache> copy_rows(const at::Tensor& rows) override;
  std::unique_ptr<Cache> move_out() override;
  void put_together(const std::vector<Cache*>& parts, const at::Tensor& rows) override;
  bool has_bound_rows() override;
  bool move_padding_to_front(const std::vector<std::int64_t>& padding) override;
  void restore(const Snapshot& mark) override;
  void expand(std::int64_t rows) override;

  std::unique_ptr<Cache> clone() override;

  std::unique_ptr<Cache> fork() override;

  CachePlan plan(const PlanInput& input) const override;
  std::int64_t nbytes() override;
  std::int64_t allocated_bytes() override;

  // Walks all state, layer by layer. No step may be open.
  void visit(Visitor& visitor);

 protected:
  // A cache of this class with other layers; classes derived from this one override it.
  virtual std::unique_ptr<LayeredCache> with_layers(LayerStack layers) const;

  // Makes the buffers of layers of a fixed size ahead of the first keys, one shape a layer. Throws
  // RuntimeError if tokens are held and ValueError for shapes that do not fit; nothing has changed
  // then.
  void make_buffers(const std::vector<KeyValueShape>& shapes);

 private:
  friend class EncoderDecoderCache;  // its steps go over the layers of two caches
  friend class CacheFile;            // cache/serialization.h

  // Refuses a cache of other layers than this one's. Throws ValueError.
  LayeredCache& checked_like(Cache& other) const;

  // Layers of this cache's kinds and settings that hold nothing; `pinned`: see make_like.
  std::vector<std::unique_ptr<Layer>> empty_layers(bool pinned = true) const;

  // The same; but layers that are made as keys come in may be missing in one of the two.
  LayeredCache& checked_mark(Cache& other) const;

  // Layers that hold what `held` does, a checked mark, and are to take the place of this cache's.
  // Recording stays on.
  std::vector<std::unique_ptr<Layer>> layers_holding(LayeredCache& held);

  // Takes keys and values into one layer outside a step. Fills `joined`, unless it is null, with
  // the view as one pair of tensors, before the layer has changed.
  View take_in(const at::Tensor& keys, const at::Tensor& values, std::int64_t layer,
               KeyValue* joined);

  // Forgets all tokens, but what was reserved stays.
  void forget_tokens() noexcept;
  bool has_fixed_buffers() const;

  static constexpr std::int64_t kMostRepeats = 65'536;
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  // that can be reserved

  detail::ByteCounts count_bytes();

  std::int64_t last_with_states() const;
  void select_rows(const std::vector<std::int64_t>& rows);

  std::string kind_;
  detail::Owned<LayerStack> stack_;  // keeps its address while the cache moves: steps hold it
};

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE std::string_view LayeredCache::kind() const { return kind_; }

KVCACHE_INLINE bool LayeredCache::has_previous_state(std::optional<std::int64_t> layer,
                                                     std::int64_t index) const {
  return stack_->states(layer ? *layer : last_with_states()).has_previous_state(index);
}

KVCACHE_INLINE Step LayeredCache::begin_step(const StepInput& input) {
  return Step(*stack_, input);
}

KVCACHE_INLINE void LayeredCache::check_fits(const std::vector<LayerSpec>& layers,
                                             at::ScalarType dtype) {
  detail::check_layers(*stack_, layers);
  detail::CheckDtype check(dtype);
  detail::visit_all(*stack_, check);
}

KVCACHE_INLINE void LayeredCache::batch_select_indices(const at::Tensor& rows) {
  stack_->check_whole();
  select_rows(detail::checked_rows(rows, stack_->batch));
}

KVCACHE_INLINE void LayeredCache::batch_repeat_interleave(std::int64_t repeats) {
  stack_->check_whole();
  check_value(repeats >= 1 && repeats <= kMostRepeats, "rows can be repeated 1 to ", kMostRepeats,
              " times, not ", repeats);
  if (repeats == 1) return;
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < stack_->batch; ++row) {
    rows.insert(rows.end(), static_cast<std::size_t>(repeats), row);
  }
  select_rows(rows);
}

KVCACHE_INLINE std::unique_ptr<Cache> LayeredCache::clone() {
  stack_->check_whole();
  return with_layers(stack_->clone(std::make_unique<Resident>()));
}

KVCACHE_INLINE std::unique_ptr<Cache> LayeredCache::fork() {
  stack_->check_whole();
  return with_layers(stack_->fork(std::make_unique<Resident>()));
}

KVCACHE_INLINE std::int64_t LayeredCache::nbytes() { return count_bytes().live; }

KVCACHE_INLINE std::int64_t LayeredCache::allocated_bytes() { return count_bytes().allocated; }

KVCACHE_INLINE void LayeredCache::visit(Visitor& visitor) {
  stack_->check_no_step();
  detail::visit_all(*stack_, visitor);
}

KVCACHE_INLINE std::unique_ptr<LayeredCache> LayeredCache::with_layers(LayerStack layers) const {
  return std::make_unique<LayeredCache>(kind_, std::move(layers));
}

KVCACHE_INLINE detail::ByteCounts LayeredCache::count_bytes() {
  detail::CountBytes counter;
  detail::visit_all(*stack_, counter);
  return counter.counts;
}

KVCACHE_INLINE void LayeredCache::reset() {
  stack_->check_no_step();
  stack_->reset();
}

KVCACHE_INLINE bool LayeredCache::can_crop(std::int64_t tokens) const {
  const std::int64_t seen = stack_->check_whole();
  if (tokens < 0 || tokens > seen) return false;
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    if (!(*stack_)[i].can_crop(tokens)) return false;
  }
  return true;
}

KVCACHE_INLINE std::pair<std::int64_t, std::int64_t> LayeredCache::get_mask_sizes(
    std::int64_t tokens, std::int64_t layer) const {
  const Visible visible = stack_->visible(layer, tokens);
  return {stack_->columns(layer, visible), visible.offset};
}

KVCACHE_INLINE std::optional<std::int64_t> LayeredCache::capacity() const {
  std::optional<std::int64_t> least;
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    const Layer& layer = (*stack_)[i];
    if (const auto room = layer.room()) {
      least = std::min(layer.seen() + *room, least.value_or(layer.seen() + *room));
    }
  }
  return least;
}

KVCACHE_INLINE View LayeredCache::take_in(const at::Tensor& keys, const at::Tensor& values,
                                          std::int64_t layer, KeyValue* joined) {
  LayerStack& stack = *stack_;
  stack.check_no_step();
  const std::int64_t had = stack.size();
  stack.make_up_to(layer);
  Layer& target = stack[layer];
  for (std::int64_t i = 0; i < had; ++i) {
    check_value(stack[i].states() == nullptr, "layer ", i, " (", stack[i].spec().type,
                ") has convolution or recurrent states, which update() does not feed; feed all "
                "layers of this cache within a step of begin_step()");
  }
  try {
    const bool shaped = keys.defined() && keys.dim() == 4;  // if not, the layer says what is wrong
    const std::int64_t rows = shaped ? keys.size(0) : 0;
    const std::int64_t tokens = shaped ? keys.size(2) : 0;
    if (shaped) stack.check_batch(rows);
    const std::int64_t length = target.seen() + tokens;  // of every layer at the end of the round
    for (std::int64_t i = 0; i < stack.size(); ++i) stack.check_room(i, length - stack[i].seen());
    stack.touch(layer);
    View view = stack.stage(layer, keys, values);
    if (joined != nullptr) *joined = stack.port(layer).joined(view);
    target.seal();
    stack.placement().after(layer, target);
    stack.stage_unknown_tokens(layer, tokens, rows);
    stack.publish_alone(layer, tokens, rows);
    return view;
  } catch (...) {
    target.discard();
    stack.shrink_to(had);
    throw;
  }
}

KVCACHE_INLINE void LayeredCache::crop(std::int64_t minus_tokens) {
  check_value(minus_tokens <= 0, "crop(", minus_tokens,
              ") is not a number of tokens to take back; pass a negative one: crop(-", minus_tokens,
              ") removes the last ", minus_tokens);
  const std::int64_t seen = stack_->check_whole();
  check_state(minus_tokens >= -seen, "crop(", minus_tokens,
              ") would take back more tokens than the cache has seen: ", seen);
  const std::int64_t tokens = -minus_tokens;
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    const Layer& layer = (*stack_)[i];
    check_state(layer.can_crop(tokens), "layer ", i, " (", described(layer.spec()),
                ") no longer holds what it needs after crop(", minus_tokens, ") at length ", seen,
                ": without recording it keeps what the next step reads, with it also what came in "
                "since the last crop, up to a bound; call activate_past_recording(), with "
                "max_tokens of at least ",
                tokens, ", before the forward passes that may be undone");
  }
  for (std::int64_t i = 0; i < stack_->size(); ++i) (*stack_)[i].crop(tokens);
  stack_->history.crop(tokens);
}

KVCACHE_INLINE void LayeredCache::activate_past_recording(std::optional<std::int64_t> max_tokens) {
  stack_->check_no_step();
  check_value(max_tokens.value_or(1) >= 1, "activate_past_recording(", max_tokens.value_or(1),
              ") is not a number of tokens; it must be at least 1");
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    stack_->naming(i, [&] { (*stack_)[i].check_past_recording(max_tokens); });
  }
  for (std::int64_t i = 0; i < stack_->size(); ++i) {
    (*stack_)[i].activate_past_recording(max_tokens);
  }
}

KVCACHE_INLINE std::int64_t LayeredCache::last_with_states() const {
  for (std::int64_t i = stack_->size() - 1; i >= 0; --i) {
    if ((*stack_)[i].states() != nullptr) return i;
  }
  throw ValueError("this cache has no layer with convolution or recurrent states");
}

KVCACHE_INLINE void LayeredCache::make_buffers(const std::vector<KeyValueShape>& shapes) {
  check_state(stack_->check_whole() == 0 && stack_->batch == 0,
              "buffers are made before the first token, but the cache has seen ",
              stack_->common_length(), " tokens of ", stack_->batch, " rows; reset it first");
  const auto port = [&](std::size_t i) {
    return (*stack_)[static_cast<std::int64_t>(i)].key_values();
  };
  std::vector<KeyValue> made(shapes.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (port(i) != nullptr) made[i] = port(i)->make_buffers(shapes[i]);
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (port(i) != nullptr) port(i)->take_buffers(std::move(made[i]));
  }
}

KVCACHE_INLINE void LayeredCache::reserve(std::int64_t tokens) {
  stack_->check_no_step();
  check_value(tokens >= 0 && tokens <= kMostTokens, "reserve(", tokens,
              ") is not a number of tokens between 0 and ", kMostTokens);
  check_value(tokens <= capacity().value_or(tokens), "reserve(", tokens,
              "): the cache is made for ", capacity().value_or(0), " tokens at most");
  stack_->reserve(tokens);
}

KVCACHE_INLINE void LayeredCache::reorder_cache(const at::Tensor& beam_idx) {
  stack_->check_whole();
  const std::vector<std::int64_t> rows = detail::checked_rows(beam_idx, stack_->batch);
  check_value(static_cast<std::int64_t>(rows.size()) == stack_->batch, "reorder_cache takes ",
              stack_->batch, " indices, one a row, but got ", rows.size(),
              "; batch_select_indices changes the number of rows");
  select_rows(rows);
}

KVCACHE_INLINE void LayeredCache::select_rows(const std::vector<std::int64_t>& rows) {
  if (rows.empty()) return;
  detail::RowChange change(*stack_, rows);
  change.prepare();
  change.apply();
}

#endif

}  // namespace kvcache

#if KVCACHE_CORE_DEFINITIONS
#include "kvcache/cache/moved_rows.h"
#include "kvcache/cache/whole_cache_operations.h"
#endif
