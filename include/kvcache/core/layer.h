// One layer of a cache, as the containers and placements see it: a length, the phases of a step,
// and a walk over its state. What is kept, how and where is decided behind it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/buffer_bytes.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/core/view.h"
#include "kvcache/core/visible.h"
#include "kvcache/core/visitor.h"

namespace kvcache {

// The attention side of a layer. `seen` is the layer's counter: the tokens of committed steps.
class KeyValuePort {
 public:
  virtual ~KeyValuePort() = default;

  // The keys that a step of `tokens` new tokens will be handed. The same before and after append.
  virtual Visible visible(std::int64_t seen, std::int64_t tokens) const = 0;

  // Stages the step's keys [batch, kv_heads, tokens, key_dim] and values [.., value_dim] and
  // returns what its queries read. Never writes where held tokens lie; what it throws has changed
  // nothing.
  virtual View append(const at::Tensor& keys, const at::Tensor& values, std::int64_t seen) = 0;

  // What is held, as a query after the last token would find it, without appending. No step may
  // be staged.
  virtual View read(std::int64_t seen) const = 0;

  // Columns of what joined() makes of a view: more than its length where storage of a fixed size
  // hands over what is not filled yet.
  virtual std::int64_t columns(const Visible& visible) const { return visible.length; }

  // The view of a step that is staged as one pair of tensors; columns that are not
  // filled yet come last, and are zero. May alias what is held.
  virtual KeyValue joined(const View& view) { return dense(view); }

  // Buffers ahead of the first keys, undefined where they are there or are not of a fixed size, and
  // the call that goes on with them. Throws ValueError for another shape than the layer's spec.
  virtual KeyValue make_buffers(const KeyValueShape&) const { return {}; }
  virtual void take_buffers(KeyValue) noexcept {}

  // Absent: buffers are not of a fixed size. Another layer of the same class that holds nothing can
  // go on with it.
  virtual std::optional<FixedLayout> layout() const { return std::nullopt; }
  virtual void take_layout(const FixedLayout&) noexcept {}

  // The buffers of a fixed size that were made, undefined ones where none were; and the call of
  // another layer like it that goes on in them, where they have the shapes of its own or it has
  // none. What it holds moves there when it is next touched.
  virtual std::vector<at::Tensor> buffers() const { return {}; }
  virtual void move_into(const std::vector<at::Tensor>&) noexcept {}
};

// One state among those of its kind in a layer.
struct ConvState {
  std::int64_t kernel_size;  // taps of the convolution
  std::int64_t index = 0;
};

// The linear side of a layer: the last inputs of causal convolutions, and recurrent states.
class StatePort {
 public:
  virtual ~StatePort() = default;

  // Whether committed steps left state `index` (of either kind). Throws ValueError if there is no
  // such state.
  virtual bool has_previous_state(std::int64_t index) const = 0;

  // Stages a convolution's new inputs [batch, channels, tokens] and returns them behind their left
  // context, [batch, channels, kernel_size - 1 + tokens]: the inputs of committed steps, zeros
  // before the first. What it throws has changed nothing.
  virtual at::Tensor update_conv_state(const at::Tensor& inputs, const ConvState& state) = 0;

  // State [batch, ...] after the last committed step; absent before the first.
  virtual std::optional<at::Tensor> recurrent_state(std::int64_t index) const = 0;

  // How many of the states after each of a step's last tokens it is to be given: 1, or more while
  // past states are recorded.
  virtual std::int64_t wanted_states(std::int64_t tokens) const = 0;

  // Stages states [wanted, batch, ...] after each of the step's last tokens, in order of time, and
  // returns the last, [batch, ...]. What it throws has changed nothing.
  virtual at::Tensor update_recurrent_state(const at::Tensor& states, std::int64_t index) = 0;
};

// Picks the constructor that shares what is held, for Layer::fork, instead of the one that copies.
struct Sharing {};

// How much is to be held: see Cache::plan.
struct PlanInput {
  std::int64_t batch = 1;   // rows
  std::int64_t tokens = 0;  // seen by each, at least 1
  at::ScalarType dtype = at::kFloat;
  // Of the encoder's output, over an encoder-decoder cache alone; see CrossInput.
  std::int64_t cross_tokens = 0;  // a row, padding included; at least 1 there
  std::int64_t cross_batch = 0;   // rows; 0: as many as the decoder's
};

// Phases of a step, in order: stage (append), seal, publish, and settle at the next touch; or
// discard at any time before publish.
class Layer {
 public:
  explicit Layer(LayerSpec spec) : spec_(std::move(spec)) {}
  virtual ~Layer() = default;

  const LayerSpec& spec() const { return spec_; }

  // Tokens seen by this layer; the only source of truth for its length.
  std::int64_t seen() const noexcept { return seen_; }

  // Null for a layer without keys and values.
  virtual KeyValuePort* key_values() noexcept = 0;

  // Null for a layer without convolution and recurrent states.
  virtual StatePort* states() noexcept = 0;

  // As Transformers' get_max_length: tokens the layer can hold, -1 if there is no bound.
  virtual std::int64_t get_max_length() const = 0;

  // Tokens that may still be appended; absent: no bound.
  virtual std::optional<std::int64_t> room() const = 0;

  // Makes room for `tokens` tokens in all, at once or with the first keys.
  virtual void reserve(std::int64_t tokens) = 0;

  // After the last reader of the step: eviction, copies. May throw and allocate. The view's content
  // stays until the layer is next touched.
  virtual void seal() = 0;

  // Makes the step true: integers and handles only.
  void publish(std::int64_t tokens) noexcept {
    publish_state(tokens);
    seen_ += tokens;
  }

  // Writes what a published step still owes, now that the layer's bytes are here again.
  virtual void settle() = 0;

  // Undoes an unpublished step.
  virtual void discard() noexcept = 0;

  // Whether crop(-tokens) would be exact. True for 0.
  virtual bool can_crop(std::int64_t tokens) const = 0;

  // The longest prefix, of at most `length` of its tokens, that crop can go back to; 0: none.
  virtual std::int64_t reusable_prefix(std::int64_t length) const {
    return can_crop(seen_ - length) ? length : 0;
  }

  // Bytes that the layer allocates for so many tokens: see Cache::plan. Absent: its spec does not
  // say how large what it holds is.
  virtual std::optional<std::int64_t> planned_bytes(const PlanInput&) const { return std::nullopt; }

  // Takes the last `tokens` tokens back, and frees recorded state that the next step will not read,
  // its memory too where as many tokens do not need it. Requires can_crop(tokens).
  void crop(std::int64_t tokens) {
    crop_state(seen_ - tokens);
    seen_ -= tokens;
  }

  // Throws RuntimeError if activate_past_recording() would.
  virtual void check_past_recording(std::optional<std::int64_t> /*max_tokens*/) const {}

  // Keeps past state from now on, so that up to `max_tokens` (at least 1) tokens can be taken back
  // beyond a window or in a recurrence; absent: the layer's own bound. Throws RuntimeError where
  // the layer's buffers cannot hold it.
  virtual void activate_past_recording(std::optional<std::int64_t> max_tokens) = 0;

  // Forgets all tokens and lets lazily made buffers go.
  void reset() noexcept {
    reset_state();
    seen_ = 0;
  }

  // Every tensor and every integer of the layer, its own counter included.
  void visit(Visitor& visitor) {
    visitor.count("seen", seen_);
    visit_state(visitor);
  }

  // Throws ValueError unless what it holds is what a layer of its kind and spec holds after seen()
  // tokens: to be asked once a visitor has filled it from outside, as from a file.
  virtual void check_filled() const = 0;

  // A deep copy. No step may be open.
  virtual std::unique_ptr<Layer> clone() const = 0;

  // Another layer of the same class and content, which shares what is held until one of them writes
  // to it. A layer that cannot share, as its addresses are fixed or its states small, gives a copy.
  // What it throws has changed nothing that is promised. No step may be open.
  virtual std::unique_ptr<Layer> fork() { return clone(); }

  // Makes what is held of one row what any number of rows read, where the layer can: visit() then
  // lists it without a batch dimension. Requires a batch of one row.
  virtual void share_rows() {}

 protected:
  Layer(const Layer&) = default;
  Layer& operator=(const Layer&) = delete;

  virtual void publish_state(std::int64_t tokens) noexcept = 0;
  virtual void crop_state(std::int64_t new_seen) = 0;
  virtual void reset_state() noexcept = 0;
  virtual void visit_state(Visitor& visitor) = 0;

 private:
  LayerSpec spec_;
  std::int64_t seen_ = 0;
};

}  // namespace kvcache
