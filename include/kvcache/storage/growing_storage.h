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
    detail::check_key_values(input.keys, input.values);
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

  void seal() override {
    if (!staged_ || !staged_->passing) return;
    const KeyValue& given = *staged_->passing;
    const std::int64_t kept = held_.end + staged_->tokens - staged_->keep_from;
    const std::int64_t skipped = staged_->tokens - kept;
    KeyValue fresh = allocate(given, std::max(2 * kept, kSmallest));
    fresh.keys.narrow(2, 0, kept).copy_(given.keys.narrow(2, skipped, kept));
    fresh.values.narrow(2, 0, kept).copy_(given.values.narrow(2, skipped, kept));
    staged_->sealed = std::move(fresh);
    staged_->passing.reset();
  }

  void publish() noexcept override {
    if (!staged_) return;
    const Range held{std::max(held_.first, staged_->keep_from), held_.end + staged_->tokens};
    if (staged_->sealed) {
      buffer_ = std::move(*staged_->sealed);
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
    bool first_step;  // discard lets the buffers go
    std::optional<KeyValue> passing =
        {};  // the step's own tensors, where they are not in the buffer
    std::optional<KeyValue> sealed = {};  // the buffers to take over: what is kept of `passing`
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

  // A long step under a window, of which only a tail will be kept, need not enter the buffer.
  bool passes_by(const StageInput& input) const {
    const std::int64_t kept = input.seen + input.tokens() - input.keep_from;
    const bool fits = start_ + held_.length() + input.tokens() <= slots();
    return !fits && input.keep_from > held_.first && input.tokens() >= kept;
  }

  View pass_by(const StageInput& input, Staged& staged) const {
    staged.passing = KeyValue{input.keys, input.values};
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
    const std::int64_t live = held_.length();
    const std::int64_t needed = live + input.tokens();
    if (start_ + needed <= slots()) return;
    if (!buffer_.keys.defined()) {
      buffer_ = allocate({input.keys, input.values}, std::max({2 * needed, reserved_, kSmallest}));
    } else if (start_ >= live && needed <= slots()) {
      move_to_front(buffer_);
    } else {
      move_to_front(allocate(buffer_, std::max({2 * needed, reserved_, kSmallest})));
    }
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
