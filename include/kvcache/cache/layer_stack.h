// What a layered cache is made of, and a step works on: the layers, where they lie, and what they
// have seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/fixed_buffers.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/history.h"
#include "kvcache/core/layer.h"
#include "kvcache/core/memory.h"
#include "kvcache/layers/registry.h"
#include "kvcache/placement/placement.h"
#include "kvcache/retention/retention.h"

namespace kvcache {

class LayerStack {
 public:
  // `specs` empty: full layers are made as their first keys come in. Throws ValueError for
  // a layer type that `registry` does not know, a donor that has no keys, and null pointers.
  LayerStack(const std::vector<LayerSpec>& specs, LayerRegistry registry,
             std::shared_ptr<Memory> memory, std::unique_ptr<Placement> placement)
      : lazy_(specs.empty()),
        registry_(std::move(registry)),
        memory_(std::move(memory)),
        placement_(std::move(placement)) {
    check_value(memory_ != nullptr,
                "the options' memory is null; leave it out for LibTorch's allocators");
    check_value(placement_ != nullptr, "the cache's placement is null");
    for (const LayerSpec& spec : specs) layers_.push_back(registry_.make(spec, memory_, size()));
    for (std::int64_t i = 0; i < size(); ++i) last_readers_.push_back(i);
    for (std::int64_t i = 0; i < size(); ++i) note_donor(i);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(layers_.size()); }

  // Whether layers are made as keys come in, and none was yet.
  bool is_unmade() const { return lazy_ && layers_.empty(); }

  bool has(std::int64_t index) const { return index >= 0 && index < size(); }
  Layer& operator[](std::int64_t index) { return *layers_[static_cast<std::size_t>(index)]; }
  const Layer& operator[](std::int64_t index) const {
    return *layers_[static_cast<std::size_t>(index)];
  }

  // Whether `index` names a layer that is here, or that may still be made. Throws ValueError if
  // not.
  void check_index(std::int64_t index) const {
    check_value(has(index) || (lazy_ && index >= 0 && index < kMostLayers), "there is no layer ",
                index, ": this cache ", lazy_ ? "can have" : "has", " layers 0 to ",
                lazy_ ? kMostLayers - 1 : size() - 1);
  }

  // Makes the layers up to `index`, where they are made lazily.
  void make_up_to(std::int64_t index) {
    check_index(index);
    while (!has(index)) {
      layers_.push_back(registry_.make(LayerSpec{}, memory_, size()));
      layers_.back()->reserve(reserved_);
    }
  }

  // A layer of the class and settings of layer `index` that holds nothing, with no buffers yet.
  // `pinned`: of a shape that was fixed for good, too, as it is to take that layer's place.
  std::unique_ptr<Layer> make_like(std::int64_t index, bool pinned = true) const {
    std::unique_ptr<Layer> fresh = registry_.make((*this)[index].spec(), memory_, index);
    if (auto layout = this->layout(index)) {
      if (!pinned) layout->pinned.reset();
      fresh->key_values()->take_layout(*layout);
    }
    return fresh;
  }

  // Of a layer whose buffers are of a fixed size.
  std::optional<FixedLayout> layout(std::int64_t index) const {
    return detail::layout_of(*layers_[static_cast<std::size_t>(index)]);
  }

  // Room for `tokens` tokens in every layer, also in those that are yet to be made.
  void reserve(std::int64_t tokens) {
    for (auto& layer : layers_) layer->reserve(tokens);
    reserved_ = std::max(reserved_, tokens);
  }

  // Tokens that there is to be room for.
  std::int64_t reserved() const { return reserved_; }

  // The attention side of a layer. Throws ValueError if it has none.
  KeyValuePort& port(std::int64_t index) const {
    Layer& layer = *layers_[static_cast<std::size_t>(index)];
    KeyValuePort* port = layer.key_values();
    check_value(port != nullptr, "layer ", index, " (", layer.spec().type,
                ") keeps no keys and values");
    return *port;
  }

  // The convolution and recurrent states of a layer. Throws ValueError if it has none.
  StatePort& states(std::int64_t index) const {
    check_index(index);
    const auto at = static_cast<std::size_t>(index);
    StatePort* states = has(index) ? layers_[at]->states() : nullptr;
    check_value(states != nullptr, "layer ", index, " (",
                has(index) ? std::string_view(layers_[at]->spec().type) : kFullAttention,
                ") keeps no convolution or recurrent states; ",
                lazy_ ? "the cache was constructed without layers and makes full attention ones as "
                        "keys come in: construct it from the model's config, "
                        "DynamicCache(model.config())"
                      : "make the cache from the model's config");
    return *states;
  }

  // What `call` refuses is told with the layer's number.
  template <typename Call>
  static auto naming(std::int64_t index, const Call& call) {
    try {
      return call();
    } catch (const ValueError& error) {
      throw ValueError(c10::str("layer ", index, ": ", error.what()));
    } catch (const RuntimeError& error) {
      throw RuntimeError(c10::str("layer ", index, ": ", error.what()));
    }
  }

  // Stages keys and values in one layer, which was touched. What it refuses names the layer and has
  // changed nothing.
  View stage(std::int64_t index, const at::Tensor& keys, const at::Tensor& values) {
    KeyValuePort& target = port(index);
    return naming(index, [&] { return target.append(keys, values, (*this)[index].seen()); });
  }

  // Forgets all.
  void reset() noexcept {
    for (auto& layer : layers_) layer->reset();
    history.reset();
    batch = 0;
    reserved_ = 0;
  }

  // Tokens seen by a layer; 0 for one that may still be made.
  std::int64_t seen(std::int64_t index) const {
    check_index(index);
    return has(index) ? (*this)[index].seen() : 0;
  }

  // What a step of `tokens` tokens is handed in a layer, also in one that may still be made.
  Visible visible(std::int64_t index, std::int64_t tokens) const {
    check_index(index);
    check_value(tokens >= 1, "a step has at least one token, not ", tokens);
    if (!has(index)) return Retention::full().visible(0, tokens);
    const Layer& layer = (*this)[index];
    if (layer.spec().donor) return visible(*layer.spec().donor, tokens);
    const KeyValuePort* port = layers_[static_cast<std::size_t>(index)]->key_values();
    return port ? port->visible(layer.seen(), tokens)
                : Retention::full().visible(layer.seen(), tokens);
  }

  // The last layer that reads the keys of layer `index` in a step: itself, or one that shares them.
  std::int64_t last_reader(std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    return i < last_readers_.size() ? last_readers_[i] : index;
  }

  // Columns that update() hands over for a `visible` of this layer.
  std::int64_t columns(std::int64_t index, const Visible& visible) const {
    if (!has(index)) return visible.length;
    Layer& layer = *layers_[static_cast<std::size_t>(index)];
    if (layer.spec().donor) return columns(*layer.spec().donor, visible);
    const KeyValuePort* port = layer.key_values();
    return port ? port->columns(visible) : visible.length;
  }

  // Refuses more tokens than a layer has room for. Throws ValueError.
  void check_room(std::int64_t index, std::int64_t tokens) const {
    const Layer& layer = (*this)[index];
    const std::int64_t room = layer.room().value_or(tokens);
    check_value(room >= tokens, "layer ", index, " holds ", layer.seen(), " of at most ",
                layer.seen() + room, " tokens and cannot take ", tokens, " more; ",
                layer.seen() > 0 ? "crop or reset the cache, or make one" : "make the cache",
                " with a larger max_cache_len");
  }

  // Refuses another number of rows than the cache holds. Throws ValueError.
  void check_batch(std::int64_t rows) const {
    if (batch == 0 || rows == batch) return;
    check_value(false, "keys have batch ", rows, ", but the cache holds batch ", batch,
                detail::fixed_rows(layers_)
                    ? ", for which early_initialization() made it; make another cache"
                    : "; select or repeat its rows first, or reset it");
  }

  // See detail::check_can_have.
  void check_can_have(std::int64_t rows) const { detail::check_can_have(layers_, rows); }

  // Brings a layer's bytes to where it computes, and pays what its last step owes.
  void touch(std::int64_t index) {
    placement_->before(index, (*this)[index]);
    (*this)[index].settle();
  }

  // The same for a walk over its state outside a step.
  void touch_for_visit(std::int64_t index) {
    placement_->sync_for_visit((*this)[index]);
    (*this)[index].settle();
  }

  // Opens a step: from here to publish or roll_back nothing else may change the stack.
  void open_step() {
    layers_at_open_ = size();
    step_open_ = true;
  }

  // Ends a step that only read.
  void close_step() noexcept { step_open_ = false; }

  // Before a step that starts over: puts what is held aside, until it is published (then it goes)
  // or rolled back (then it is back), and goes on with new layers of the same kinds.
  void put_aside() {
    std::vector<std::unique_ptr<Layer>> fresh;
    for (std::int64_t i = 0; !lazy_ && i < size(); ++i) {
      fresh.push_back(make_like(i));
    }
    aside_ = std::make_unique<Aside>(
        Aside{std::exchange(layers_, std::move(fresh)), std::exchange(history, {}), batch});
    batch = 0;
  }

  // Undoes put_aside(), if there was one.
  void take_back() noexcept {
    if (!aside_) return;
    layers_ = std::move(aside_->layers);
    history = std::move(aside_->history);
    batch = aside_->batch;
    aside_.reset();
  }

  // Makes the open step of `tokens` tokens and `rows` rows true.
  void publish(std::int64_t tokens, std::int64_t rows) noexcept {
    for (auto& layer : layers_) layer->publish(tokens);
    if (aside_) detail::keep_addresses(layers_, aside_->layers);
    history.publish();
    batch = rows;
    aside_.reset();
    step_open_ = false;
  }

  // Leaves all as it was before open_step.
  void roll_back() noexcept {
    for (auto& layer : layers_) layer->discard();
    shrink_to(layers_at_open_);
    history.discard();
    take_back();
    step_open_ = false;
  }

  // Lets layers from `count` on go: those that an undone call had made.
  void shrink_to(std::int64_t count) noexcept {
    if (count < size()) layers_.resize(static_cast<std::size_t>(count));
  }

  // Tokens seen by every layer. Throws RuntimeError in the middle of a round of update() calls,
  // when layers differ.
  std::int64_t common_length() const {
    const std::int64_t seen = layers_.empty() ? 0 : layers_.front()->seen();
    for (std::int64_t i = 0; i < size(); ++i) {
      check_state((*this)[i].seen() == seen, "the layers differ in length: layer 0 has seen ", seen,
                  " tokens and layer ", i, " ", (*this)[i].seen(),
                  "; update() every layer before using the cache as a whole");
    }
    return seen;
  }

  // Before `tokens` tokens of `rows` rows are published in one layer, outside a step: if that ends
  // a round of update() calls, the history is to grow by tokens whose ids are not known.
  void stage_unknown_tokens(std::int64_t index, std::int64_t tokens, std::int64_t rows) {
    const std::int64_t length = (*this)[index].seen() + tokens;
    if (length > history.seen() && ends_round(index, length)) {
      history.stage({.batch = rows, .tokens = length - history.seen()});
    }
  }

  // Makes what was staged in one layer, outside a step, true. Layers that keep nothing, which
  // update() never feeds, follow at the end of a round.
  void publish_alone(std::int64_t index, std::int64_t tokens, std::int64_t rows) noexcept {
    (*this)[index].publish(tokens);
    const std::int64_t length = (*this)[index].seen();
    if (ends_round(index, length)) {
      for (auto& layer : layers_) {
        if (layer->seen() != length) layer->publish(length - layer->seen());
      }
    }
    history.publish();
    batch = rows;
  }

  void check_no_step() const {
    check_state(!step_open_, "a step is open on this cache; commit it or let it go first");
  }

  // All of what a whole-cache operation asks for.
  std::int64_t check_whole() const {
    check_no_step();
    return common_length();
  }

  LayerStack clone(std::unique_ptr<Placement> placement) {
    return copied(std::move(placement), [](Layer& layer) { return layer.clone(); });
  }

  // The same with layers that share what they hold. See Layer::fork.
  LayerStack fork(std::unique_ptr<Placement> placement) {
    return copied(std::move(placement), [](Layer& layer) { return layer.fork(); });
  }

  // One with the same registry and settings that has no layers yet.
  LayerStack clone_without_layers(std::unique_ptr<Placement> placement) const {
    LayerStack copy({}, registry_, memory_, std::move(placement));
    copy.lazy_ = lazy_;
    copy.reserved_ = reserved_;
    copy.last_readers_ = last_readers_;
    return copy;
  }

  // Goes on with other layers of the same kinds, and what they have seen. Buffers of a fixed size
  // keep their addresses where their shape stays. Returns the former layers.
  detail::Layers take(detail::Layers layers, History seen, std::int64_t rows) noexcept {
    std::swap(layers_, layers);
    detail::keep_addresses(layers_, layers);
    history = std::move(seen);
    batch = rows;
    return layers;
  }

  Placement& placement() { return *placement_; }
  const std::shared_ptr<Memory>& memory() const { return memory_; }

  History history;
  std::int64_t batch = 0;  // rows; 0 until the first keys come in

 private:
  struct Aside {
    std::vector<std::unique_ptr<Layer>> layers;
    History history;
    std::int64_t batch;
  };

  template <typename Copy>
  LayerStack copied(std::unique_ptr<Placement> placement, const Copy& copy_of) {
    LayerStack copy = clone_without_layers(std::move(placement));
    for (std::int64_t i = 0; i < size(); ++i) {
      touch_for_visit(i);
      copy.layers_.push_back(copy_of((*this)[i]));
    }
    copy.history = history;
    copy.batch = batch;
    return copy;
  }

  // Whether every layer that keeps something has seen `length` tokens, once layer `index` has.
  bool ends_round(std::int64_t index, std::int64_t length) const noexcept {
    for (std::int64_t i = 0; i < size(); ++i) {
      Layer& layer = *layers_[static_cast<std::size_t>(i)];
      const bool keeps = layer.key_values() != nullptr || layer.states() != nullptr;
      if (keeps && i != index && layer.seen() != length) return false;
    }
    return true;
  }

  // Refuses a donor that is no earlier layer with keys of its own. Throws ValueError.
  void note_donor(std::int64_t index) {
    const LayerSpec& spec = (*this)[index].spec();
    if (!spec.donor) return;
    check_value(*spec.donor >= 0 && *spec.donor < index, "layer ", index,
                " reads the keys of layer ", *spec.donor, ", which is no earlier layer");
    port(*spec.donor);
    last_readers_[static_cast<std::size_t>(*spec.donor)] = index;
  }

  static constexpr std::int64_t kMostLayers = 10'000;  // of a cache that makes them lazily

  bool step_open_ = false;
  std::int64_t layers_at_open_ = 0;
  std::int64_t reserved_ = 0;  // tokens asked for by reserve()
  bool lazy_;
  LayerRegistry registry_;
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<Placement> placement_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<Aside> aside_;            // what a step that starts over replaces
  std::vector<std::int64_t> last_readers_;  // by layer; none for those made lazily
};

}  // namespace kvcache
