// Plain keys and values that grow with the text: one buffer each, appended in place, doubled when
// full. Under a window the live slots move along the buffer and are brought back to its front now
// and then, so a token costs the same at any length.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kvcache/storage/check.h"
#include "kvcache/storage/storage.h"

namespace kvcache {

class GrowingStorage final : public Storage {
 public:
  explicit GrowingStorage(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}

  Range held() const override { return held_; }
  std::optional<std::int64_t> capacity() const override { return std::nullopt; }

  void reserve(std::int64_t tokens) override {
    if (buffer_.keys.defined() && tokens > slots()) move_to_front(allocate(buffer_, tokens));
    reserved_ = std::max(reserved_, tokens);
  }

  View stage(const StageInput& input) override {
    if (buffer_.keys.defined()) {
      detail::check_continues(buffer_.keys, input.keys, "keys");
      detail::check_continues(buffer_.values, input.values, "values");
    }
    const bool first_step = !buffer_.keys.defined();
    Staged staged{.tokens = input.tokens(), .keep_from = input.keep_from, .first_step = first_step};
    try {
      View view = passes_by(input) ? pass_by(input, staged) : write(input);
      staged_ = std::move(staged);
      return view;
    } catch (...) {
      if (first_step) release();
      throw;
    }
  }

  View read(const Visible& visible) const override {
    View view;
    view.visible = visible;
    if (!buffer_.keys.defined()) return view;
    const std::int64_t slot = start_ + visible.offset - held_.first;
    view.batch = buffer_.keys.size(0);
    view.segments.push_back({buffer_.keys.narrow(2, slot, visible.length),
                             buffer_.values.narrow(2, slot, visible.length), visible.offset});
    return view;
  }

  void seal() override {}  // stage copied what outlives the views

  void publish() noexcept override {
    if (!staged_) return;
    const Range held{std::max(held_.first, staged_->keep_from), held_.end + staged_->tokens};
    if (staged_->successor) {
      buffer_ = std::move(*staged_->successor);
      start_ = 0;
    } else {
      start_ += held.first - held_.first;
    }
    held_ = held;
    staged_.reset();
  }

  void settle() override {}  // publish took the buffers over; nothing is owed

  void discard() noexcept override {
    if (staged_ && staged_->first_step) release();
    staged_.reset();
  }

  void trim(Range keep) override {
    start_ += keep.first - held_.first;
    held_ = keep;
  }

  void reset() noexcept override {
    staged_.reset();
    release();
    held_ = {};
    reserved_ = 0;
  }

  void visit(Visitor& visitor) override {
    visitor.count("held_first", held_.first);
    visitor.count("held_end", held_.end);
    const Range live{start_, start_ + held_.length()};
    visitor.tensor({.name = "keys", .batch_dim = 0, .token_dim = 2, .live = live}, buffer_.keys);
    visitor.tensor({.name = "values", .batch_dim = 0, .token_dim = 2, .live = live},
                   buffer_.values);
  }

  std::unique_ptr<Storage> clone() const override {
    auto copy = std::make_unique<GrowingStorage>(memory_);
    copy->reserved_ = reserved_;
    copy->held_ = held_;
    copy->start_ = start_;
    copy->buffer_ = buffer_;  // shared only until the next line
    if (buffer_.keys.defined()) copy->move_to_front(copy->allocate(buffer_, slots()));
    return copy;
  }

 private:
  static constexpr std::int64_t kSmallest = 16;  // slots of the smallest buffer

  struct Staged {
    std::int64_t tokens;
    std::int64_t keep_from;
    bool first_step;                         // discard lets the buffers go
    std::optional<KeyValue> successor = {};  // buffers to take over, where the step passed by
  };

  std::int64_t slots() const { return buffer_.keys.defined() ? buffer_.keys.size(2) : 0; }

  void release() noexcept {
    buffer_ = {};
    start_ = 0;
  }

  KeyValue allocate(const KeyValue& like, std::int64_t slots) const {
    const auto make = [&](const at::Tensor& t) {
      return memory_->allocate({t.size(0), t.size(1), slots, t.size(3)},
                               {.dtype = t.scalar_type(), .device = t.device()});
    };
    return {make(like.keys), make(like.values)};
  }

  // Copies the live slots to the front of `target`, which may be this buffer where source and
  // target do not overlap, and goes on with it.
  void move_to_front(KeyValue target) {
    const std::int64_t live = held_.length();
    target.keys.narrow(2, 0, live).copy_(buffer_.keys.narrow(2, start_, live));
    target.values.narrow(2, 0, live).copy_(buffer_.values.narrow(2, start_, live));
    buffer_ = std::move(target);
    start_ = 0;
  }

  // Slots of a new buffer: what was asked for if that will do, else twice the need.
  std::int64_t slots_for(std::int64_t needed) const {
    return std::max(reserved_ >= needed ? reserved_ : 2 * needed, kSmallest);
  }

  bool fits(std::int64_t tokens) const { return start_ + held_.length() + tokens <= slots(); }

  // Whether moving the live slots to the front, where they may not overlap themselves, makes room.
  bool fits_at_front(std::int64_t tokens) const {
    return start_ >= held_.length() && held_.length() + tokens <= slots();
  }

  // A long step under a window, of which only a tail will be kept, need not enter a buffer that is
  // too small for it.
  bool passes_by(const StageInput& input) const {
    const std::int64_t tokens = input.tokens();
    const std::int64_t kept = input.seen + tokens - input.keep_from;
    return input.keep_from > held_.first && tokens >= kept && !fits(tokens) &&
           !fits_at_front(tokens);
  }

  // The queries read the given tensors; the tail goes to new buffers, as a discard must find the
  // present ones.
  View pass_by(const StageInput& input, Staged& staged) const {
    const std::int64_t kept = input.seen + input.tokens() - input.keep_from;
    KeyValue tail = allocate({input.keys, input.values}, slots_for(kept));
    const std::int64_t skipped = input.tokens() - kept;
    tail.keys.narrow(2, 0, kept).copy_(input.keys.narrow(2, skipped, kept));
    tail.values.narrow(2, 0, kept).copy_(input.values.narrow(2, skipped, kept));
    staged.successor = std::move(tail);
    const std::int64_t before = input.visible.length - input.tokens();
    if (before == 0) return as_view({input.keys, input.values}, input);
    const std::int64_t slot = start_ + input.visible.offset - held_.first;
    const auto joined = [&](const at::Tensor& old, const at::Tensor& added) {
      return at::cat({old.narrow(2, slot, before), added}, 2);
    };
    return as_view({joined(buffer_.keys, input.keys), joined(buffer_.values, input.values)}, input);
  }

  View write(const StageInput& input) {
    make_room(input);
    const std::int64_t end = start_ + held_.length();
    buffer_.keys.narrow(2, end, input.tokens()).copy_(input.keys);
    buffer_.values.narrow(2, end, input.tokens()).copy_(input.values);
    const std::int64_t slot = start_ + input.visible.offset - held_.first;
    return as_view({buffer_.keys.narrow(2, slot, input.visible.length),
                    buffer_.values.narrow(2, slot, input.visible.length)},
                   input);
  }

  void make_room(const StageInput& input) {
    const std::int64_t slots = slots_for(held_.length() + input.tokens());
    if (!buffer_.keys.defined()) {
      buffer_ = allocate({input.keys, input.values}, slots);
    } else if (!fits(input.tokens())) {
      const bool in_place = fits_at_front(input.tokens()) && !aliases_buffer(input);
      move_to_front(in_place ? buffer_ : allocate(buffer_, slots));
    }
  }

  // Whether the step's tensors are views that this storage gave out: moving tokens within the
  // buffer would change them before they are read.
  bool aliases_buffer(const StageInput& input) const {
    for (const at::Tensor* given : {&input.keys, &input.values}) {
      if (given->is_alias_of(buffer_.keys) || given->is_alias_of(buffer_.values)) return true;
    }
    return false;
  }

  static View as_view(KeyValue states, const StageInput& input) {
    View view;
    view.visible = input.visible;
    view.batch = input.keys.size(0);
    view.segments.push_back(
        {std::move(states.keys), std::move(states.values), input.visible.offset});
    return view;
  }

  std::shared_ptr<Memory> memory_;
  KeyValue buffer_;            // [batch, kv_heads, slots, head_dim] each, undefined while empty
  std::int64_t start_ = 0;     // slot of position held_.first
  Range held_;                 // positions promised
  std::int64_t reserved_ = 0;  // tokens asked for by reserve()
  std::optional<Staged> staged_;
};

}  // namespace kvcache
