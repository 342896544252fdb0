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

#include "kvcache/cache/layer_stack.h"

namespace kvcache {

struct StepInput {
  std::int64_t tokens = 0;  // new tokens a row, padding included
  std::int64_t batch = 0;   // rows
  // int64 [batch, tokens]; absent (embeddings): the history is no longer known.
  std::optional<at::Tensor> ids = {};
  // bool or integer [batch, tokens], or [batch, seen + tokens], whose first columns then replace
  // what the cache knows of its past's padding; 0 = padding. Absent: all real.
  std::optional<at::Tensor> valid = {};
};

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
      if (stack.last_reader(layer) > layer) turn(layer).shared_view = view;
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
    check_value(donor.has_value(), "layer ", layer, " shares no other layer's keys and values");
    const std::optional<View>& shared = turn(*donor).shared_view;
    check_state(shared.has_value(), "layer ", *donor, ", whose keys layer ", layer,
                " reads, got none in this step yet");
    enter(layer);
    turn(layer).keys = true;
    return *shared;
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
    check_state(stack.size() > 0, "the step has no layer to commit: nothing was appended");
    for (std::int64_t i = 0; i < stack.size(); ++i) check_turn_complete(i);
    seal_before(stack.size());
    stack.publish(tokens_, batch_);
    (void)stack_.release();
  }

 private:
  // What a layer was given in this step.
  struct Turn {
    bool entered = false;
    bool keys = false;    // or read, where they are another layer's
    bool states = false;  // of convolutions and recurrences
    bool sealed = false;
    std::optional<View> shared_view = {};  // for later layers that share it
  };

  static constexpr std::int64_t kMost = std::int64_t{1} << 31;

  void check(const LayerStack& stack, const StepInput& input) const {
    check_value(tokens_ > 0 && batch_ > 0, "a step needs at least one token and one row, but got ",
                tokens_, " tokens and ", batch_, " rows");
    check_value(tokens_ <= kMost && batch_ <= kMost / tokens_, "a step of ", tokens_,
                " tokens and ", batch_, " rows is more than ", kMost, " tokens in all");
    stack.check_batch(batch_);
    for (std::int64_t i = 0; i < stack.size(); ++i) stack.check_room(i, tokens_);
    if (input.ids) {
      check_value(input.ids->dim() == 2 && input.ids->size(0) == batch_ &&
                      input.ids->size(1) == tokens_ && input.ids->scalar_type() == at::kLong,
                  "ids must be int64 [", batch_, ", ", tokens_, "], but are ", input.ids->dtype(),
                  " ", input.ids->sizes());
    }
    if (input.valid) {
      const std::int64_t columns = input.valid->dim() == 2 ? input.valid->size(1) : -1;
      check_value(columns == tokens_ || columns == seen_ + tokens_,
                  "the attention mask must be [batch, tokens] = [", batch_, ", ", tokens_,
                  "] or, with the past, [", batch_, ", ", seen_ + tokens_, "], but is ",
                  input.valid->sizes());
      check_value(input.valid->size(0) == batch_, "the attention mask has ", input.valid->size(0),
                  " rows, but the step has ", batch_);
      check_value(c10::isIntegralType(input.valid->scalar_type(), /*includeBool=*/true),
                  "the attention mask must hold integers or booleans, but is ",
                  input.valid->dtype());
    }
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

  void check_turn_complete(std::int64_t index) {
    Layer& layer = (*stack_)[index];
    const bool has_keys = layer.key_values() != nullptr || layer.spec().donor;
    check_state(turn(index).keys || !has_keys, "layer ", index, " of ", stack_->size(),
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
};

}  // namespace kvcache
