// Plain keys and values that grow with the text: one buffer each, appended in place, doubled when
// full. Under a window the live slots move along the buffer and are brought back to its front now
// and then, so a token costs the same at any length. After a fork the older tokens lie in parts
// that are shared, and the buffer holds those that came since.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "kvcache/storage/check.h"
#include "kvcache/storage/shared_parts.h"
#include "kvcache/storage/storage.h"

namespace kvcache {

class GrowingStorage final : public Storage {
 public:
  explicit GrowingStorage(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}

  Range held() const override { return held_; }
  std::optional<std::int64_t> capacity() const override { return std::nullopt; }

  void reserve(std::int64_t tokens) override {
    const std::int64_t needed = tokens - tokens_in_parts();
    if (buffer_.keys.defined() && needed > slots()) move_to_front(allocate(buffer_, needed));
    reserved_ = std::max(reserved_, tokens);
  }

  std::int64_t planned_slots(std::int64_t tokens) const override {
    return std::max(tokens, kSmallest);
  }

  View stage(const StageInput& input) override {
    check_continues(input);
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
    if (const KeyValue* held = sample()) view.batch = held->keys.size(0);
    add_held(view, {visible.offset, visible.offset + visible.length});
    return view;
  }

  void seal() override {}  // stage copied what outlives the views

  void publish() noexcept override {
    if (!staged_) return;
    const Range held{std::max(held_.first, staged_->keep_from), held_.end + staged_->tokens};
    if (staged_->successor) buffer_ = std::move(*staged_->successor);
    const bool moved = staged_->successor.has_value();
    staged_.reset();
    hold(held);
    if (moved) start_ = 0;
  }

  void settle() override {}  // publish took the buffers over; nothing is owed

  void discard() noexcept override {
    if (staged_ && staged_->first_step) release();
    staged_.reset();
  }

  void trim(Range keep) override {
    const std::int64_t taken_back = held_.end - keep.end;  // as many may come again
    hold(keep);
    parts_.compact(*memory_);
    give_back(taken_back + 1, /*excess=*/2);
  }

  void reset() noexcept override {
    staged_.reset();
    release();
    parts_.clear();
    held_ = {};
    reserved_ = 0;
  }

  void visit(Visitor& visitor) override {
    visitor.count("held_first", held_.first);
    visitor.count("held_end", held_.end);
    parts_.visit(visitor);
    const Range live{start_, start_ + tail().length()};
    visitor.tensor({.name = "keys", .batch_dim = 0, .token_dim = 2, .live = live}, buffer_.keys);
    visitor.tensor({.name = "values", .batch_dim = 0, .token_dim = 2, .live = live},
                   buffer_.values);
  }

  void check_filled(const LayerSpec& spec, std::int64_t seen) const override {
    detail::check_filled(buffer_, spec, seen);
  }

  std::unique_ptr<Storage> clone() const override {
    auto copy = std::make_unique<GrowingStorage>(memory_);
    copy->reserved_ = reserved_;
    copy->held_ = held_;
    copy->parts_ = parts_.clone_all_rows(*memory_);
    const KeyValue* like = buffer_.keys.defined() ? &buffer_ : last_part_of_rows();
    if (like == nullptr) return copy;
    const Range own = copy->tail();
    copy->buffer_ = allocate(*like, std::max(own.length() - tail().length() + slots(), kSmallest));
    View view;
    add_held(view, own);
    for (const Segment& segment : view.segments) {
      const std::int64_t slot = segment.first - own.first;
      copy->buffer_.keys.narrow(2, slot, segment.length()).copy_(segment.keys);
      copy->buffer_.values.narrow(2, slot, segment.length()).copy_(segment.values);
    }
    return copy;
  }

  std::unique_ptr<Storage> fork() override {
    freeze();
    auto copy = std::make_unique<GrowingStorage>(memory_);
    copy->reserved_ = reserved_;
    copy->held_ = held_;
    copy->parts_ = parts_;
    return copy;
  }

  void share_rows() override {
    freeze();
    release();
    parts_.share_rows();
  }

 private:
  static constexpr std::int64_t kSmallest = 16;  // slots of the smallest buffer

  struct Staged {
    std::int64_t tokens;
    std::int64_t keep_from;
    bool first_step;                         // discard lets the buffers go
    std::optional<KeyValue> successor = {};  // buffers to take over, where the step passed by
  };

  // Positions in the buffer: those after the parts.
  Range tail() const { return {std::max(held_.first, parts_.end()), held_.end}; }

  std::int64_t tokens_in_parts() const { return tail().first - held_.first; }

  std::int64_t slots() const { return buffer_.keys.defined() ? buffer_.keys.size(2) : 0; }

  void release() noexcept {
    buffer_ = {};
    start_ = 0;
  }

  KeyValue allocate(const KeyValue& like, std::int64_t slots) const {
    return detail::allocate_slots(*memory_, like, slots);
  }

  // Keys and values as they are held; null before the first.
  const KeyValue* sample() const {
    if (buffer_.keys.defined()) return &buffer_;
    return parts_.empty() ? nullptr : &parts_.list().back().states;
  }

  const KeyValue* last_part_of_rows() const {
    return parts_.empty() || parts_.list().back().all_rows ? nullptr : &parts_.list().back().states;
  }

  // Refuses what does not go on from what is held; a part that all rows share takes any number of
  // them.
  void check_continues(const StageInput& input) const {
    const KeyValue* held = sample();
    if (held == nullptr) return;
    const bool any_rows = !buffer_.keys.defined() && parts_.list().back().all_rows;
    const auto rows = [&](const at::Tensor& t) {
      return any_rows ? t.expand({input.keys.size(0), -1, -1, -1}) : t;
    };
    detail::check_continues(rows(held->keys), input.keys, "keys");
    detail::check_continues(rows(held->values), input.values, "values");
  }

  // Makes `held`, which begins no earlier than before, what is promised.
  void hold(Range held) noexcept {
    const std::int64_t first = tail().first;
    held_ = held;
    parts_.trim(held, /*as_sample=*/!buffer_.keys.defined());
    start_ = tail().first < first ? 0 : start_ + tail().first - first;
  }

  // Turns the buffer into a part that other caches may read. Changes nothing that is promised.
  void freeze() {
    const Range own = tail();
    if (buffer_.keys.defined() && (own.length() > 0 || parts_.empty())) {
      const auto used = [&](const at::Tensor& t) {
        return t.narrow(2, 0, std::max<std::int64_t>(start_ + own.length(), 1));
      };
      parts_.add(
          {.states = {used(buffer_.keys), used(buffer_.values)}, .tokens = own, .slot = start_},
          *memory_);
      release();
    }
    parts_.share();
  }

  // Copies the live slots to the front of `target`, which may be this buffer where source and
  // target do not overlap, and goes on with it.
  void move_to_front(KeyValue target) {
    const std::int64_t live = tail().length();
    target.keys.narrow(2, 0, live).copy_(buffer_.keys.narrow(2, start_, live));
    target.values.narrow(2, 0, live).copy_(buffer_.values.narrow(2, start_, live));
    buffer_ = std::move(target);
    start_ = 0;
  }

  // Slots of a new buffer: what was asked for if that will do, else twice the need.
  std::int64_t slots_for(std::int64_t needed) const {
    const std::int64_t reserved = reserved_ - tokens_in_parts();
    return std::max(reserved >= needed ? reserved : 2 * needed, kSmallest);
  }

  // Goes on with a smaller buffer where this one has more than `excess` times the slots that a new
  // one for what is held and `tokens` more would have. Where there is no memory for it this one
  // will do: giving memory back never fails.
  void give_back(std::int64_t tokens, std::int64_t excess) noexcept {
    const std::int64_t wanted = slots_for(tail().length() + tokens);
    if (slots() / excess <= wanted) return;
    try {
      move_to_front(allocate(buffer_, wanted));
    } catch (const std::exception&) {
      return;
    }
  }

  bool fits(std::int64_t tokens) const { return start_ + tail().length() + tokens <= slots(); }

  // Whether moving the live slots to the front, where they may not overlap themselves, makes room.
  bool fits_at_front(std::int64_t tokens) const {
    return start_ >= tail().length() && tail().length() + tokens <= slots();
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
    KeyValue successor = allocate({input.keys, input.values}, slots_for(kept));
    const std::int64_t skipped = input.tokens() - kept;
    successor.keys.narrow(2, 0, kept).copy_(input.keys.narrow(2, skipped, kept));
    successor.values.narrow(2, 0, kept).copy_(input.values.narrow(2, skipped, kept));
    staged.successor = std::move(successor);
    View view = view_of(input);
    parts_.add_segments(view, {input.visible.offset, input.seen});
    const std::int64_t first = std::max(input.visible.offset, tail().first);
    if (first == input.seen) {
      view.segments.push_back({input.keys, input.values, input.seen});
      return view;
    }
    const KeyValue old = in_buffer({first, input.seen});
    view.segments.push_back(
        {at::cat({old.keys, input.keys}, 2), at::cat({old.values, input.values}, 2), first});
    return view;
  }

  View write(const StageInput& input) {
    give_back(input.tokens(), /*excess=*/4);
    make_room(input);
    const std::int64_t end = start_ + tail().length();
    buffer_.keys.narrow(2, end, input.tokens()).copy_(input.keys);
    buffer_.values.narrow(2, end, input.tokens()).copy_(input.values);
    View view = view_of(input);
    add_held(view, {input.visible.offset, input.seen + input.tokens()});
    return view;
  }

  void make_room(const StageInput& input) {
    const std::int64_t slots = slots_for(tail().length() + input.tokens());
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

  static View view_of(const StageInput& input) {
    View view;
    view.visible = input.visible;
    view.batch = input.keys.size(0);
    return view;
  }

  // Positions, from tail().first on, as they lie in the buffer.
  KeyValue in_buffer(Range positions) const {
    const std::int64_t slot = start_ + positions.first - tail().first;
    return {buffer_.keys.narrow(2, slot, positions.length()),
            buffer_.values.narrow(2, slot, positions.length())};
  }

  // Appends the segments of positions, those of parts first.
  void add_held(View& view, Range positions) const {
    parts_.add_segments(view, positions);
    const std::int64_t first = std::max(positions.first, tail().first);
    if (!buffer_.keys.defined() || first >= positions.end) return;
    const KeyValue states = in_buffer({first, positions.end});
    view.segments.push_back({states.keys, states.values, first});
  }

  std::shared_ptr<Memory> memory_;
  KeyValue buffer_;            // [batch, kv_heads, slots, head_dim] each, undefined while empty
  std::int64_t start_ = 0;     // slot of position tail().first
  detail::SharedParts parts_;  // tokens before the buffer's
  Range held_;                 // positions promised
  std::int64_t reserved_ = 0;  // tokens asked for by reserve()
  std::optional<Staged> staged_;
};

}  // namespace kvcache
