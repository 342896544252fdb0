// A forward pass over a cache as a transaction: layers append within it, and only commit() makes it
// true for all of them at once. A step that is let go leaves every layer as it was. The cache may
// move meanwhile, but must outlive the step.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/held_encoder.h"
#include "kvcache/cache/layer_stack.h"
#include "kvcache/cache/step_input.h"

namespace kvcache {

class Step {
 public:
  // Refuses before anything changes: RuntimeError if a step is open or the layers differ in length,
  // ValueError if batch, capacity or the tensors' shapes do not fit. Use Cache::begin_step.
  Step(LayerStack& stack, const StepInput& input)
      : tokens_(input.tokens),
        batch_(input.batch),
        seen_(stack.check_whole()),
        input_{.batch = batch_, .tokens = tokens_} {
    check(stack, input);
    turns_.resize(static_cast<std::size_t>(stack.size()));
    stage_history(stack, input);
    stack.open_step();
    stack_.reset(&stack);
  }

  // Over the layers of a decoder, whose cross-attention reads those of `encoder`. Keys of the same
  // encoder input are read where they lie; for another one the step holds a child of the same fate.
  // Refuses besides, with ValueError: no encoder input where none is held, and a changed one, or
  // one that cannot be compared, behind tokens of the decoder.
  Step(LayerStack& stack, const StepInput& input, LayerStack& encoder)
      : Step(stack, {.tokens = input.tokens,
                     .batch = input.batch,
                     .ids = input.ids,
                     .valid = input.valid}) {
    open_cross(encoder, input.cross);
  }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t batch() const { return batch_; }

  // Tokens seen before this step; the positions, in columns, that the new tokens follow.
  std::int64_t seen() const { return seen_; }

  // What this layer's queries will be handed; the same before and after append.
  Visible visible(std::int64_t layer) const { return open().visible(layer, tokens_); }

  // Tokens seen by this layer before this step.
  std::int64_t query_offset(std::int64_t layer) const { return open().seen(layer); }

  // Positions of the new tokens, int64 [batch, tokens] on the CPU: real tokens before each in its
  // row.
  at::Tensor positions() const { return open().history.positions(input_); }

  // Real tokens of each row, those of this step included.
  std::vector<std::int64_t> lengths() const { return open().history.lengths(input_); }

  // The first row whose past has another stamp than `stamps`, one a row, says: what the model's
  // keys depend on beside their tokens. A row without real tokens has none.
  std::optional<std::int64_t> first_row_unlike(const std::vector<std::int64_t>& stamps) const {
    return open().history.first_row_unlike(stamps, input_.past_valid);
  }

  // Stamps the rows, one number each, when the step is committed.
  void stamp(std::vector<std::int64_t> stamps) { open().history.stamp(std::move(stamps)); }

  // The tokens before this step.
  const History& history() const { return open().history; }

  // bool [batch, seen] on the CPU: which of them are real, where this step's mask says it anew.
  const std::optional<at::Tensor>& past_valid() const { return input_.past_valid; }

  // bool [batch, seen + tokens] on the CPU: which columns are real. Absent if all are.
  std::optional<at::Tensor> valid() const {
    const History& history = open().history;
    if (!input_.valid && !input_.past_valid && history.all_valid()) return std::nullopt;
    const auto rows = [&](std::int64_t columns) { return at::ones({batch_, columns}, at::kBool); };
    const at::Tensor past = input_.past_valid      ? *input_.past_valid
                            : history.batch() == 0 ? rows(seen_)
                                                   : history.valid();
    at::Tensor all = at::cat({past, input_.valid ? *input_.valid : rows(tokens_)}, 1);
    if (all.all().item<bool>()) return std::nullopt;
    return all;
  }

  // Stages the layer's keys [batch, kv_heads, tokens, key_dim] and values and returns what its
  // queries read. The first call for a layer seals every earlier one whose keys no later layer
  // shares. Throws ValueError for tensors that do not fit and RuntimeError for a layer that had its
  // turn; either leaves all as it was.
  View append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values) {
    LayerStack& stack = open();
    const std::int64_t had = stack.size();
    stack.check_index(layer);
    check_value(layer <= had, "layer ", layer, " has its turn before layer ", had,
                "; a step goes through the layers in order");
    check_value(stack.has(layer) || seen_ == 0, "there is no layer ", layer, ": the cache's ", had,
                " layers have seen ", seen_, " tokens, which a new layer would lack");
    stack.make_up_to(layer);
    try {
      turns_.resize(static_cast<std::size_t>(stack.size()));
      check_keys(layer, keys);
      enter(layer);
      View view = stack.stage(layer, keys, values);
      turn(layer).keys = true;
      if (stack.last_reader(layer) > layer || is_child_) turn(layer).shared_view = view;
      return view;
    } catch (...) {
      stack.shrink_to(had);
      turns_.resize(static_cast<std::size_t>(had));
      throw;
    }
  }

  // What the queries of a shared layer read: its donor's keys and values, the step's own included.
  // Throws ValueError if the layer shares none and RuntimeError if its donor had no turn yet.
  View view(std::int64_t layer) {
    const LayerStack& stack = open();
    const std::optional<std::int64_t> donor =
        stack.has(layer) ? stack[layer].spec().donor : std::nullopt;
    check_value(donor.has_value(), "layer ", layer,
                " of the cache shares no other layer's keys and ",
                "values; make the cache from the model's config");
    const std::optional<View>& shared = turn(*donor).shared_view;
    check_state(shared.has_value(), "layer ", *donor, ", whose keys layer ", layer,
                " reads, got none in this step yet");
    enter(layer);
    turn(layer).keys = true;
    return *shared;
  }

  // The encoder's side where this step computes it: append each layer's cross-attention keys
  // [encoder rows, kv_heads, encoder tokens, key_dim] and values to it. It is committed and rolled
  // back together with this step, never by itself. Null where the keys are held.
  Step* cross() { return cross_.get(); }

  // What this layer's queries read of the encoder, [encoder rows, ...]: the keys that are held, or
  // those that cross() was given for it, until its next layer's turn. Each encoder row is that of
  // batch() / (encoder rows) neighbouring rows. Throws ValueError if the step has no encoder's side
  // and RuntimeError if cross() got no keys for this layer.
  View cross_view(std::int64_t layer) {
    open();
    if (cross_) return cross_->staged_view(layer);
    check_value(held_.has_value(),
                "this step reads no encoder: its cache is no EncoderDecoderCache");
    return held_->read(layer);
  }

  // bool [encoder rows, encoder tokens] on the CPU: which of the encoder's tokens are real. Absent
  // if all are.
  std::optional<at::Tensor> cross_valid() const {
    open();
    if (cross_) return cross_->valid();
    return held_ ? held_->valid() : std::nullopt;
  }

  // A convolution's inputs [batch, channels, tokens] behind their left context: see StatePort.
  at::Tensor update_conv_state(std::int64_t layer, const at::Tensor& inputs,
                               const ConvState& state) {
    StatePort& states = enter_states(layer);
    check_value(inputs.defined() && inputs.dim() == 3 && inputs.size(0) == batch_ &&
                    inputs.size(2) == tokens_,
                "layer ", layer, " got inputs of a convolution of shape ", shape_of(inputs),
                " in a step of batch ", batch_, " and ", tokens_,
                " tokens; they must be [batch, channels, tokens]");
    at::Tensor result =
        LayerStack::naming(layer, [&] { return states.update_conv_state(inputs, state); });
    turn(layer).states = true;
    return result;
  }

  // The state [batch, ...] that the step starts from; absent before the first token.
  std::optional<at::Tensor> recurrent_state(std::int64_t layer, std::int64_t index = 0) {
    const StatePort& states = enter_states(layer);
    return LayerStack::naming(layer, [&] { return states.recurrent_state(index); });
  }

  // How many of the states after its last tokens the layer is to be given: 1, or more while past
  // states are recorded.
  std::int64_t wanted_states(std::int64_t layer) const {
    return open().states(layer).wanted_states(tokens_);
  }

  // States [wanted_states(layer), batch, ...] after each of the last tokens; returns the last one.
  at::Tensor update_recurrent_state(std::int64_t layer, const at::Tensor& new_states,
                                    std::int64_t index = 0) {
    StatePort& states = enter_states(layer);
    check_value(new_states.defined() && new_states.dim() >= 2 &&
                    new_states.size(0) == wanted_states(layer) && new_states.size(1) == batch_,
                "layer ", layer, " got recurrent states of shape ", shape_of(new_states),
                "; they must be [", wanted_states(layer), ", ", batch_,
                ", ...], one after each of the last tokens");
    at::Tensor last =
        LayerStack::naming(layer, [&] { return states.update_recurrent_state(new_states, index); });
    turn(layer).states = true;
    return last;
  }

  // Makes the step true for all layers. Throws RuntimeError if a layer had no turn; the step then
  // stays open.
  void commit() {
    LayerStack& stack = open();
    check_state(!is_child_, "an encoder's side is committed by the decoder's step");
    check_complete();
    if (cross_) cross_->check_complete();
    seal_before(stack.size());
    if (cross_) cross_->seal_before(cross_->stack_->size());
    if (held_) held_->leave();
    publish();
  }

 private:
  // What a layer was given in this step.
  struct Turn {
    bool entered = false;
    bool keys = false;    // or read, where they are another layer's
    bool states = false;  // of convolutions and recurrences
    bool sealed = false;
    std::optional<View> shared_view = {};  // for later layers that share it, or a decoder's
  };

  void check(const LayerStack& stack, const StepInput& input) const {
    detail::check_tokens(input, seen_);
    check_value(!input.cross,
                "the step has an encoder's input, but its cache no encoder's side; make an "
                "EncoderDecoderCache");
    stack.check_batch(batch_);
    for (std::int64_t i = 0; i < stack.size(); ++i) stack.check_room(i, tokens_);
  }

  void stage_history(LayerStack& stack, const StepInput& input) {
    if (input.ids) input_.ids = input.ids->to(at::kCPU).contiguous();
    if (input.valid) {
      const at::Tensor valid = input.valid->to(at::kCPU).to(at::kBool);
      const std::int64_t past = valid.size(1) - tokens_;
      input_.valid = valid.narrow(1, past, tokens_).contiguous();
      if (past > 0) input_.past_valid = valid.narrow(1, 0, past).contiguous();
    }
    stack.history.stage(input_);
  }

  LayerStack& open() const {
    check_state(stack_ != nullptr, "the step is over: it was committed, rolled back or moved from");
    return *stack_;
  }

  Turn& turn(std::int64_t layer) { return turns_[static_cast<std::size_t>(layer)]; }

  static std::string shape_of(const at::Tensor& tensor) {
    return tensor.defined() ? c10::str(tensor.sizes()) : "(undefined)";
  }

  void check_keys(std::int64_t layer, const at::Tensor& keys) {
    check_state(!turn(layer).keys, "layer ", layer,
                " already got its keys in this step; a step appends to each layer once");
    check_value(
        keys.defined() && keys.dim() == 4 && keys.size(0) == batch_ && keys.size(2) == tokens_,
        "layer ", layer, " got keys of shape ", shape_of(keys), " in a step of batch ", batch_,
        " and ", tokens_, " tokens; they must be [batch, kv_heads, tokens, head_dim]");
  }

  // The model comes to a layer: earlier ones are done, but for those that a later layer shares.
  void enter(std::int64_t layer) {
    for (std::int64_t i = layer + 1; i < stack_->size(); ++i) {
      check_state(!turn(i).entered, "layer ", i, " had its turn before layer ", layer,
                  "; a step goes through the layers in order");
    }
    seal_before(layer);
    if (turn(layer).entered) return;
    stack_->touch(layer);
    turn(layer).entered = true;
  }

  StatePort& enter_states(std::int64_t layer) {
    StatePort& states = open().states(layer);
    enter(layer);
    return states;
  }

  // Reads the encoder's keys that are held, or opens a child step that takes them in.
  void open_cross(LayerStack& encoder, const std::optional<CrossInput>& input) {
    const std::int64_t held = encoder.check_whole();
    check_value(
        input || held > 0,
        "no encoder's keys are held; pass the encoder's input with the decoder's first step");
    if (input) detail::check_cross_input(*input);
    const bool same = held > 0 && (!input || detail::holds(encoder, *input, batch_));
    const std::int64_t rows = same ? encoder.batch : input->batch;
    check_value(batch_ % rows == 0, "the step's ", batch_,
                " rows are no multiple of the encoder's ", rows);
    if (same) {
      held_.emplace(encoder);
      return;
    }
    check_value(held == 0 || seen_ == 0,
                "the encoder's input is not known to be the one whose keys are held, which ", seen_,
                " tokens of the decoder have read; reset() the cache first, or leave the input out "
                "to go on with what is held");
    if (held > 0) encoder.put_aside();
    try {
      cross_ = std::make_unique<Step>(encoder, StepInput{.tokens = input->tokens,
                                                         .batch = input->batch,
                                                         .ids = input->ids,
                                                         .valid = input->valid});
    } catch (const ValueError& error) {
      encoder.take_back();
      throw ValueError(c10::str("the encoder's side: ", error.what()));
    } catch (...) {
      encoder.take_back();
      throw;
    }
    cross_->is_child_ = true;
    encoder.reserve(input->tokens);  // all there will be
  }

  const View& staged_view(std::int64_t layer) {
    const bool appended = open().has(layer) && turn(layer).shared_view;
    check_state(appended, "the encoder's keys of layer ", layer,
                " are not staged: append them to cross() before a later layer's");
    return *turn(layer).shared_view;
  }

  void check_complete() {
    check_state(stack_->size() > 0, "the step has no layer to commit: nothing was appended");
    for (std::int64_t i = 0; i < stack_->size(); ++i) check_turn_complete(i);
  }

  void publish() noexcept {
    if (cross_) cross_->publish();
    cross_.reset();
    held_.reset();
    stack_->publish(tokens_, batch_);
    (void)stack_.release();
  }

  void check_turn_complete(std::int64_t index) {
    Layer& layer = (*stack_)[index];
    const bool has_keys = layer.key_values() != nullptr || layer.spec().donor;
    check_state(turn(index).keys || !has_keys, is_child_ ? "the encoder's side: layer " : "layer ",
                index, " of ", stack_->size(),
                layer.spec().donor ? " did not read its donor's keys in this step; view"
                                   : " got no keys in this step; append to",
                " every layer before commit()");
    check_state(turn(index).states || layer.states() == nullptr, "layer ", index, " of ",
                stack_->size(),
                " got no convolution or recurrent state in this step; update every "
                "layer's before commit()");
  }

  void seal_before(std::int64_t layer) {
    for (std::int64_t i = 0; i < layer; ++i) {
      Turn& done = turn(i);
      if (!done.entered || done.sealed || stack_->last_reader(i) >= layer) continue;
      LayerStack::naming(i, [&] { (*stack_)[i].seal(); });
      done.sealed = true;
      done.shared_view.reset();
      stack_->placement().after(i, (*stack_)[i]);
    }
  }

  struct RollBack {
    void operator()(LayerStack* stack) const noexcept { stack->roll_back(); }
  };

  std::unique_ptr<LayerStack, RollBack> stack_;  // null once the step is over
  std::int64_t tokens_ = 0;
  std::int64_t batch_ = 0;
  std::int64_t seen_ = 0;
  History::Staged input_;  // ids and valid rows, on the CPU
  std::vector<Turn> turns_;
  bool is_child_ = false;                    // the encoder's side of another step
  std::unique_ptr<Step> cross_;              // the encoder's side, where it is computed
  std::optional<detail::HeldEncoder> held_;  // ... where it is held
};

}  // namespace kvcache
