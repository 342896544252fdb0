// The encoder's keys that an encoder-decoder cache holds already, as a decoder's step reads them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kvcache/cache/layer_stack.h"
#include "kvcache/cache/step_input.h"

namespace kvcache::detail {

// Nothing else may change the stack while one is there.
class HeldEncoder {
 public:
  explicit HeldEncoder(LayerStack& stack) : stack_(&stack) { stack.open_step(); }

  // What is held of a layer. The layer that was read before is done. Throws ValueError for a layer
  // without keys.
  View read(std::int64_t layer) {
    LayerStack& stack = *stack_;
    check_value(stack.has(layer), "the encoder's side has no layer ", layer, ", but layers 0 to ",
                stack.size() - 1);
    const KeyValuePort& port = stack.port(layer);
    if (layer != current_) {
      leave();
      stack.touch(layer);
      current_ = layer;
    }
    return port.read(stack[layer].seen());
  }

  // The layer that was read last is done.
  void leave() {
    if (current_) stack_->placement().after(*current_, (*stack_)[*current_]);
    current_.reset();
  }

  std::optional<at::Tensor> valid() const {
    if (stack_->history.all_valid()) return std::nullopt;
    return stack_->history.valid();
  }

 private:
  struct Close {
    void operator()(LayerStack* stack) const noexcept { stack->close_step(); }
  };

  std::unique_ptr<LayerStack, Close> stack_;
  std::optional<std::int64_t> current_;
};

// Whether an encoder's input, checked, is known to be the one whose keys a stack holds: for each of
// the decoder's `rows` rows the same real tokens in the same columns.
inline bool holds(const LayerStack& encoder, const CrossInput& input, std::int64_t rows) {
  const History& history = encoder.history;
  if (!input.ids || !history.known() || history.seen() != input.tokens) return false;
  if (rows % input.batch != 0 || rows % encoder.batch != 0) return false;
  const auto spread = [&](const at::Tensor& t) { return t.repeat_interleave(rows / t.size(0), 0); };
  const at::Tensor real = spread(input.valid ? input.valid->to(at::kCPU).to(at::kBool)
                                             : at::ones({input.batch, input.tokens}, at::kBool));
  if (!real.equal(spread(history.valid()))) return false;
  const at::Tensor same = spread(input.ids->to(at::kCPU)).eq(spread(history.ids()));
  return same.logical_or(real.logical_not()).all().item<bool>();
}

// Refuses an encoder's input that is malformed, or has a row without a real token, over which no
// attention has a value. Throws ValueError.
inline void check_cross_input(const CrossInput& input) {
  check_tokens(
      {.tokens = input.tokens, .batch = input.batch, .ids = input.ids, .valid = input.valid}, 0);
  check_value(!input.valid || input.valid->to(at::kBool).any(1).all().item<bool>(),
              "a row of the encoder's attention mask holds padding alone");
}

}  // namespace kvcache::detail
