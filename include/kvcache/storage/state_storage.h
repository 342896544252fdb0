// The bytes of linear layers' states: the left context of a convolution and the states of a
// recurrence, as many of the past ones as are recorded. As in Storage, nothing that is held is
// written between stage and publish.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/core/layer.h"
#include "kvcache/core/layer_spec.h"
#include "kvcache/core/memory.h"
#include "kvcache/core/visitor.h"
#include "kvcache/storage/allocate_slots.h"
#include "kvcache/storage/state_check.h"

namespace kvcache {

// The last inputs of a causal convolution: kernel_size - 1 of them, zeros before the first token,
// and those of recorded tokens before. They move along a buffer and are brought back to its front
// now and then, so that a token costs the same at any length.
class ConvolutionStorage {
 public:
  // `size` absent: taken from the first inputs. Throws ValueError for one that no convolution has.
  explicit ConvolutionStorage(std::shared_ptr<Memory> memory,
                              const std::optional<ConvolutionSize>& size = {})
      : size_(size), memory_(std::move(memory)) {
    check_value(!size || size->is_none() ||
                    (size->channels > 0 && size->taps >= 1 && size->taps <= kLargestKernel),
                "a convolution of ", size.value_or(ConvolutionSize{}),
                " is none; it has a channel or more and from 1 to ", kLargestKernel, " taps");
  }
  ConvolutionStorage(ConvolutionStorage&&) noexcept = default;

  // Whether committed steps left inputs here.
  bool holds() const { return buffer_.defined(); }
  bool staged() const { return staged_.has_value(); }

  // Whether it is known to be there before the first step.
  bool listed() const { return size_ && !size_->is_none(); }

  // Takes inputs [batch, channels, tokens] in and returns them behind their context, [batch,
  // channels, kernel_size - 1 + tokens]; `recorded` tokens can be taken back once the step is
  // published. Throws ValueError for what does not continue the layer; what it throws has changed
  // nothing.
  at::Tensor stage(const at::Tensor& inputs, std::int64_t kernel_size, std::int64_t recorded) {
    check(inputs, kernel_size);
    const std::int64_t tokens = inputs.size(kTime);
    Staged staged{.context = kernel_size - 1, .kept = kernel_size - 1 + recorded};
    at::Tensor result = recorded <= tokens && !fits(tokens) && !fits_at_front(tokens)
                            ? pass_by(inputs, staged)
                            : write(inputs, staged);
    staged_ = std::move(staged);
    return result;
  }

  void publish() noexcept {
    if (!staged_) return;
    if (staged_->successor) {
      buffer_ = std::move(*staged_->successor);
      start_ = 0;
    } else {
      start_ += live_ + staged_->tokens - staged_->kept;
    }
    context_ = staged_->context;
    live_ = staged_->kept;
    staged_.reset();
  }

  void discard() noexcept { staged_.reset(); }

  // Takes `tokens` tokens back; can take back `recorded` more of them afterwards. Requires as many
  // to be recorded. Memory that as many tokens again do not need is given back.
  void trim(std::int64_t tokens, std::int64_t recorded) noexcept {
    if (!holds()) return;
    const std::int64_t kept = context_ + recorded;
    start_ += live_ - tokens - kept;
    live_ = kept;
    if (buffer_.size(kTime) > slots_for(live_ + tokens)) give_back(slots_for(live_ + tokens));
  }

  void reset() noexcept {
    staged_.reset();
    buffer_.reset();
    start_ = live_ = context_ = 0;
  }

  // Bytes after a first step of which `recorded` tokens can be taken back. Absent: the size is not
  // known.
  std::optional<std::int64_t> planned_bytes(const PlanInput& input, std::int64_t recorded) const {
    if (!size_) return std::nullopt;
    return detail::bytes_of({input.batch, size_->channels, slots_for(size_->taps - 1 + recorded)},
                            input.dtype);
  }

  // `recorded` tokens can be taken back. A visitor may fill a storage that holds nothing: it then
  // gives the convolution's taps. Throws ValueError for taps without inputs, or the reverse.
  void visit(const std::string& name, std::int64_t recorded, Visitor& visitor) {
    std::int64_t taps = holds() ? context_ + 1 : 0;
    visitor.count(name + "_taps", taps);
    if (!holds() && taps > 0) {
      context_ = taps - 1;
      live_ = context_ + recorded;
    }
    visitor.tensor({.name = name,
                    .role = Role::convolution,
                    .batch_dim = 0,
                    .token_dim = kTime,
                    .live = {start_, start_ + live_}},
                   buffer_);
    check_value(holds() == (taps > 0), name, "_taps is ", taps, ", but ",
                holds() ? "there are inputs; it must be at least 1" : "there are no inputs");
  }

  // Throws ValueError unless a visitor filled in what such a storage holds after some tokens.
  void check_filled(const std::string& name) const {
    detail::check_filled(buffer_, name, size_, context_ + 1);
  }

  // A deep copy. No step may be staged.
  ConvolutionStorage clone() const {
    ConvolutionStorage copy(memory_, size_);
    copy.live_ = live_;
    copy.context_ = context_;
    if (holds()) copy.buffer_ = moved(buffer_.size(kTime));
    return copy;
  }

 private:
  static constexpr std::int64_t kChannels = 1, kTime = 2;  // dimensions

  struct Staged {
    std::int64_t context;
    std::int64_t kept;                         // slots held once published
    std::int64_t tokens = 0;                   // written behind what is held
    std::optional<at::Tensor> successor = {};  // buffer to take over instead
  };

  void check(const at::Tensor& inputs, std::int64_t kernel_size) const {
    detail::check_state_tensor(inputs, 3, "inputs of a convolution");
    check_value(inputs.dim() == 3,
                "inputs of a convolution must be [batch, channels, tokens], but ",
                "their shape is ", inputs.sizes());
    check_value(kernel_size >= 1 && kernel_size <= kLargestKernel,
                "a convolution's kernel_size is ", kernel_size, "; it must be from 1 to ",
                kLargestKernel);
    detail::check_size(size_, {inputs.size(kChannels), kernel_size});
    if (!holds()) return;
    check_value(kernel_size == context_ + 1, "a convolution's kernel_size is ", kernel_size,
                ", but the layer holds inputs for ", context_ + 1);
    detail::check_state_continues(buffer_, inputs, kTime, "inputs of a convolution");
  }

  bool fits(std::int64_t tokens) const {
    return holds() && start_ + live_ + tokens <= buffer_.size(kTime);
  }

  // Whether the front has room for what is held and the new tokens, without touching what is held.
  bool fits_at_front(std::int64_t tokens) const { return holds() && live_ + tokens <= start_; }

  static std::int64_t slots_for(std::int64_t kept) { return 2 * (kept + 1); }

  // Goes on with a smaller buffer; where there is no memory for it this one will do.
  void give_back(std::int64_t slots) noexcept {
    try {
      buffer_ = moved(slots);
      start_ = 0;
    } catch (const std::exception&) {
      return;
    }
  }

  at::Tensor moved(std::int64_t slots) const {
    at::Tensor target = detail::allocate_slots(*memory_, buffer_, kTime, slots);
    target.narrow(kTime, 0, live_).copy_(buffer_.narrow(kTime, start_, live_));
    return target;
  }

  // The queries read a joined copy, and the tail that stays goes to a new buffer: a discard must
  // find the present one.
  at::Tensor pass_by(const at::Tensor& inputs, Staged& staged) const {
    const std::int64_t context = staged.context;
    at::Tensor joined =
        holds() ? at::cat({buffer_.narrow(kTime, start_ + live_ - context, context), inputs}, kTime)
                : at::constant_pad_nd(inputs, {context, 0});
    staged.successor = detail::allocate_slots(*memory_, inputs, kTime, slots_for(staged.kept));
    staged.successor->narrow(kTime, 0, staged.kept)
        .copy_(joined.narrow(kTime, joined.size(kTime) - staged.kept, staged.kept));
    return joined;
  }

  at::Tensor write(const at::Tensor& inputs, Staged& staged) {
    staged.tokens = inputs.size(kTime);
    if (!fits(staged.tokens)) {
      if (fits_at_front(staged.tokens)) {
        buffer_.narrow(kTime, 0, live_).copy_(buffer_.narrow(kTime, start_, live_));
      } else {
        buffer_ = moved(slots_for(live_ + staged.tokens));
      }
      start_ = 0;
    }
    const std::int64_t end = start_ + live_;
    buffer_.narrow(kTime, end, staged.tokens).copy_(inputs);
    return buffer_.narrow(kTime, end - staged.context, staged.context + staged.tokens);
  }

  static constexpr std::int64_t kLargestKernel = std::int64_t{1} << 20;  // taps

  std::optional<ConvolutionSize> size_;
  std::shared_ptr<Memory> memory_;
  at::Tensor buffer_;         // [batch, channels, slots]; undefined before the first committed step
  std::int64_t start_ = 0;    // slot of the oldest input held
  std::int64_t live_ = 0;     // inputs held
  std::int64_t context_ = 0;  // of them needed by the next step: kernel_size - 1
  std::optional<Staged> staged_;
};

// The state of a recurrence after the last token, and after recorded tokens before it: slots in a
// ring. Without recording there are two of them, used in turn.
class RecurrentStorage {
 public:
  // `size` absent: taken from the first states. Throws ValueError for a shape with negative sizes.
  explicit RecurrentStorage(std::shared_ptr<Memory> memory, std::optional<RecurrentSize> size = {})
      : size_(std::move(size)), memory_(std::move(memory)) {
    for (const std::int64_t dim : size_ ? size_->shape : std::vector<std::int64_t>{}) {
      check_value(dim >= 0, "a recurrent state of ", *size_, " is none; its sizes are at least 0");
    }
  }
  RecurrentStorage(RecurrentStorage&&) noexcept = default;

  // Whether committed steps left a state here.
  bool holds() const { return buffer_.defined(); }
  bool staged() const { return staged_.has_value(); }

  // Whether it is known to be there before the first step.
  bool listed() const { return size_ && !size_->is_none(); }

  // The last state, [batch, ...]; absent before the first. Aliases the ring.
  std::optional<at::Tensor> last() const {
    if (!holds()) return std::nullopt;
    return buffer_.select(0, slot(live_ - 1));
  }

  // Takes states [count, batch, ...] after each of the last tokens in, and returns the last of
  // them; of all, at most `most` are held once the step is published. Throws ValueError for what
  // does not continue the layer; what it throws has changed nothing.
  at::Tensor stage(const at::Tensor& states, std::int64_t most) {
    detail::check_state_tensor(states, 2, "recurrent states");
    detail::check_size(size_, states);
    if (holds()) detail::check_state_continues(buffer_, states, 0, "recurrent states");
    const std::int64_t count = states.size(0);
    Staged staged{.count = count, .kept = std::min(live_ + count, most)};
    if (!holds() || (live_ + count > slots() && count >= staged.kept)) {
      staged.successor = detail::allocate_slots(*memory_, states, 0, slots_for(count, most));
      staged.successor->narrow(0, 0, count).copy_(states);
    } else {
      if (live_ + count > slots()) {
        buffer_ = moved(slots_for(live_ + count, most));
        start_ = 0;
      }
      write(states);
    }
    staged_ = std::move(staged);
    return staged_->successor ? staged_->successor->select(0, count - 1)
                              : buffer_.select(0, slot(live_ + count - 1));
  }

  void publish() noexcept {
    if (!staged_) return;
    if (staged_->successor) {
      buffer_ = std::move(*staged_->successor);
      start_ = staged_->count - staged_->kept;
    } else {
      start_ = slot(live_ + staged_->count - staged_->kept);
    }
    live_ = staged_->kept;
    staged_.reset();
  }

  void discard() noexcept { staged_.reset(); }

  // Takes `tokens` tokens back, and holds at most `most` states afterwards. Requires a state to be
  // left. Memory that as many tokens again do not need is given back.
  void trim(std::int64_t tokens, std::int64_t most) noexcept {
    if (!holds()) return;
    const std::int64_t left = live_ - tokens;
    live_ = std::min(left, most);
    start_ = slot(left - live_);
    const std::int64_t wanted = slots_for(live_ + tokens, std::max(most, live_ + tokens));
    if (slots() > wanted) give_back(wanted);
  }

  void reset() noexcept {
    staged_.reset();
    buffer_.reset();
    start_ = live_ = 0;
  }

  // Bytes after a first step, of whose states at most `most` are held. Absent: the size is not
  // known.
  std::optional<std::int64_t> planned_bytes(const PlanInput& input, std::int64_t most) const {
    if (!size_) return std::nullopt;
    std::vector<std::int64_t> shape{slots_for(std::min(input.tokens, most), most), input.batch};
    shape.insert(shape.end(), size_->shape.begin(), size_->shape.end());
    return detail::bytes_of(shape, size_->dtype.value_or(input.dtype));
  }

  // A visitor may fill a storage that holds nothing: it then says how many states there are, of
  // which there must be `states` if there are any. Throws ValueError for another number.
  void visit(const std::string& name, std::int64_t states, Visitor& visitor) {
    const bool held = holds();
    visitor.count(name + "_states", live_);
    check_value(held || live_ == 0 || live_ == states, name, "_states is ", live_, "; it must be ",
                states, ", or 0 where there are none");
    visitor.tensor({.name = name,
                    .role = Role::recurrent,
                    .batch_dim = 1,
                    .token_dim = 0,
                    .live = {start_, start_ + live_}},
                   buffer_);
    check_value(holds() == (live_ > 0), name, "_states is ", live_, ", but ",
                holds() ? "there are states" : "there are none");
  }

  // As in ConvolutionStorage.
  void check_filled(const std::string& name) const { detail::check_filled(buffer_, name, size_); }

  // A deep copy. No step may be staged.
  RecurrentStorage clone() const {
    RecurrentStorage copy(memory_, size_);
    copy.live_ = live_;
    if (holds()) copy.buffer_ = moved(slots());
    return copy;
  }

 private:
  struct Staged {
    std::int64_t count;                        // new states
    std::int64_t kept;                         // states held once published
    std::optional<at::Tensor> successor = {};  // ring to take over, its states at the front
  };

  std::int64_t slots() const { return buffer_.size(0); }
  std::int64_t slot(std::int64_t index) const { return (start_ + index) % slots(); }

  // Slots of a new ring: twice the need, until there is one more than are ever held.
  static std::int64_t slots_for(std::int64_t needed, std::int64_t most) {
    return std::max(needed, std::min(2 * needed, most + 1));
  }

  // As in ConvolutionStorage.
  void give_back(std::int64_t slots) noexcept {
    try {
      buffer_ = moved(slots);
      start_ = 0;
    } catch (const std::exception&) {
      return;
    }
  }

  at::Tensor moved(std::int64_t slots) const {
    at::Tensor target = detail::allocate_slots(*memory_, buffer_, 0, slots);
    const std::int64_t at_end = std::min(live_, this->slots() - start_);
    target.narrow(0, 0, at_end).copy_(buffer_.narrow(0, start_, at_end));
    if (at_end < live_) {
      target.narrow(0, at_end, live_ - at_end).copy_(buffer_.narrow(0, 0, live_ - at_end));
    }
    return target;
  }

  // Behind what is held, which leaves room for them.
  void write(const at::Tensor& states) {
    const std::int64_t count = states.size(0), first = slot(live_);
    const std::int64_t at_end = std::min(count, slots() - first);
    buffer_.narrow(0, first, at_end).copy_(states.narrow(0, 0, at_end));
    if (at_end < count) {
      buffer_.narrow(0, 0, count - at_end).copy_(states.narrow(0, at_end, count - at_end));
    }
  }

  std::optional<RecurrentSize> size_;
  std::shared_ptr<Memory> memory_;
  at::Tensor buffer_;       // [slots, batch, ...]; undefined before the first committed step
  std::int64_t start_ = 0;  // slot of the oldest state held
  std::int64_t live_ = 0;   // states held
  std::optional<Staged> staged_;
};

}  // namespace kvcache
