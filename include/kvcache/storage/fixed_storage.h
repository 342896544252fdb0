// Plain keys and values in buffers of a fixed size, whose addresses stay as long as the shape of
// the keys does. Position p lies in slot p modulo the number of slots: the buffer of a layer that
// keeps every token never comes round, a window's is a ring.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/dtype_name.h"
#include "kvcache/storage/check.h"
#include "kvcache/storage/fixed_room.h"
#include "kvcache/storage/storage.h"

namespace kvcache {

class FixedStorage final : public Storage {
 public:
  FixedStorage(const FixedStorageOptions& options, std::shared_ptr<Memory> memory)
      : room_(options), memory_(std::move(memory)) {}

  Range held() const override { return held_; }
  std::optional<std::int64_t> capacity() const override { return room_.capacity(); }
  std::int64_t least_columns() const override { return room_.columns(); }

  void reserve(std::int64_t) override {}  // all room is there from the first keys on

  std::int64_t planned_slots(std::int64_t) const override { return slots(); }

  std::int64_t record_room(std::optional<std::int64_t> asked) const override {
    return room_.record_room(asked, held_.end == 0);
  }
  std::int64_t most_record() const override { return room_.most_record(held_.end == 0); }

  // A larger ring is made with the next keys.
  void record(std::int64_t tokens) noexcept override { room_.record(tokens); }

  KeyValue make_buffers(const KeyValueShape& shape) const override {
    return is_shaped(shape) ? KeyValue{} : allocate(shape);
  }

  void take_buffers(KeyValue buffers) noexcept override {
    if (buffers.keys.defined()) buffer_ = std::move(buffers);
    pinned_ = shape_of(buffer_);
    shape_fixed_ = true;
  }

  std::optional<FixedLayout> layout() const override { return FixedLayout{room_.slots(), pinned_}; }

  void take_layout(const FixedLayout& layout) noexcept override {
    room_.set_slots(layout.slots);
    pinned_ = layout.pinned;
    shape_fixed_ = pinned_.has_value();
  }

  std::vector<at::Tensor> buffers() const override { return {buffer_.keys, buffer_.values}; }

  void move_into(const std::vector<at::Tensor>& buffers) noexcept override {
    const bool has_own = buffer_.keys.defined();
    if (buffers.size() != 2 || !buffers[0].defined() || buffers[0].size(2) != slots()) return;
    const KeyValue given{buffers[0], buffers[1]};
    if (has_own && !(shape_of(given) == shape_of(buffer_))) return;
    if (has_own) moved_from_ = std::move(buffer_);
    buffer_ = given;
  }

  View stage(const StageInput& input) override {
    settle();
    check(input);
    Staged staged{.held = {std::max(held_.first, input.keep_from), input.seen + input.tokens()},
                  .buffer_before = buffer_};
    try {
      const KeyValueShape shape = shape_of({input.keys, input.values});
      if (!is_shaped(shape)) buffer_ = allocate(shape);
      View view = fits(input) ? write_all(input) : pass_by(input, staged);
      staged_ = std::move(staged);
      return view;
    } catch (...) {
      buffer_ = staged.buffer_before;
      throw;
    }
  }

  View read(const Visible& visible) const override {
    View view;
    view.visible = visible;
    if (!buffer_.keys.defined()) return view;
    view.batch = buffer_.keys.size(0);
    add_held(view, {visible.offset, visible.offset + visible.length});
    return view;
  }

  // Zeros behind what is filled, so that whoever reads padding finds numbers there.
  KeyValue joined(const View& view) override {
    const std::int64_t length = view.visible.length, columns = room_.columns();
    if (length >= columns) return dense(view);
    const auto padded = [&](const at::Tensor& buffer) {
      buffer.narrow(2, length, columns - length).zero_();
      return buffer.narrow(2, 0, columns);
    };
    return {padded(buffer_.keys), padded(buffer_.values)};
  }

  void seal() override {}  // stage copied what outlives the views

  void publish() noexcept override {
    if (!staged_) return;
    held_ = staged_->held;
    owed_ = std::move(staged_->owed);
    shape_fixed_ = true;
    staged_.reset();
  }

  void settle() override {
    if (moved_from_) {
      copy_held(*moved_from_, buffer_);
      moved_from_.reset();
    }
    if (!owed_) return;
    write(owed_->states, owed_->first);
    owed_.reset();
  }

  void discard() noexcept override {
    if (staged_) buffer_ = std::move(staged_->buffer_before);
    staged_.reset();
  }

  void trim(Range keep) override { held_ = keep; }

  // The buffers stay; those that early_initialization() made refuse other shapes also afterwards.
  void reset() noexcept override {
    discard();
    moved_from_.reset();
    owed_.reset();
    held_ = {};
    shape_fixed_ = pinned_.has_value();
  }

  // The number of slots is a setting, not state: a visitor fills the slots that there are. Throws
  // ValueError for more tokens than those.
  void visit(Visitor& visitor) override {
    settle();
    visitor.count("held_first", held_.first);
    visitor.count("held_end", held_.end);
    check_value(held_.length() <= slots(), "there are ", held_.length(),
                " tokens to hold, but the layer's buffers have ", slots(),
                " slots; make the cache with a larger record_slack or max_cache_len");
    std::int64_t shape_fixed = shape_fixed_ ? 1 : 0;
    visitor.count("shape_fixed", shape_fixed);
    check_value(shape_fixed == 0 || shape_fixed == 1, "shape_fixed is ", shape_fixed,
                "; it must be 0 or 1");
    const std::int64_t slot = held_.first % slots();
    TensorInfo info{.name = "keys",
                    .batch_dim = 0,
                    .token_dim = 2,
                    .live = {slot, slot + held_.length()},
                    .slots = slots()};
    visitor.tensor(info, buffer_.keys);
    info.name = "values";
    visitor.tensor(info, buffer_.values);
    shape_fixed_ = pinned_.has_value() || (shape_fixed == 1 && buffer_.keys.defined());
  }

  // The shape is that which was fixed for good, if one was.
  void check_filled(const LayerSpec& spec, std::int64_t seen) const override {
    detail::check_filled(buffer_, spec, seen);
    if (!buffer_.keys.defined()) return;
    check_pinned(buffer_);
    check_value(shape_fixed_, "shape_fixed is 0; it must be 1, as there are keys");
  }

  // A copy has buffers of its own, whose shape nobody asked for: other ones fit after a reset.
  std::unique_ptr<Storage> clone() const override {
    auto copy = std::unique_ptr<FixedStorage>(new FixedStorage(room_, memory_));
    copy->held_ = held_;
    copy->owed_ = owed_;  // never written to
    copy->shape_fixed_ = shape_fixed_;
    if (!buffer_.keys.defined()) return copy;
    copy->buffer_ = copy->allocate(shape_of(buffer_));
    copy_held(content(), copy->buffer_);
    return copy;
  }

 private:
  FixedStorage(const detail::FixedRoom& room, std::shared_ptr<Memory> memory)
      : room_(room), memory_(std::move(memory)) {}

  struct Owed {
    KeyValue states;     // own copies
    std::int64_t first;  // position of the first token
  };

  struct Staged {
    Range held;              // once published
    KeyValue buffer_before;  // discard goes back to it
    std::optional<Owed> owed = {};
  };

  std::int64_t slots() const { return room_.slots(); }

  static at::Tensor part_of(const at::Tensor& buffer, Range part) {
    return buffer.narrow(2, part.first, part.length());
  }

  // Where what is held lies until the storage is settled: buffers of the same shape.
  const KeyValue& content() const { return moved_from_ ? *moved_from_ : buffer_; }

  void copy_held(const KeyValue& from, const KeyValue& to) const {
    for (const Range& part : slots_of(held_)) {
      part_of(to.keys, part).copy_(part_of(from.keys, part));
      part_of(to.values, part).copy_(part_of(from.values, part));
    }
  }

  // Refuses another shape than the one that was fixed for good. Throws ValueError.
  void check_pinned(const KeyValue& given) const {
    if (!pinned_ || shape_of(given) == *pinned_) return;
    check_value(false, "keys and values are ", detail::dtype_name(given.keys), " ",
                given.keys.sizes(), " and ", given.values.sizes(), " on ", given.keys.device(),
                ", but early_initialization() fixed the layer's buffers to batch ", pinned_->batch,
                ", ", pinned_->kv_heads, " heads of sizes ", pinned_->key_dim, " and ",
                pinned_->value_dim, ", ", pinned_->dtype, " on ", pinned_->device,
                "; make another cache for them");
  }

  c10::SmallVector<Range, 2> slots_of(Range positions) const {
    return detail::ring_parts(positions, slots());
  }

  bool is_shaped(const KeyValueShape& shape) const {
    return buffer_.keys.defined() && buffer_.keys.size(2) == slots() && shape_of(buffer_) == shape;
  }

  KeyValue allocate(const KeyValueShape& shape) const {
    const auto make = [&](std::int64_t dim) {
      return memory_->allocate({shape.batch, shape.kv_heads, slots(), dim},
                               {.dtype = shape.dtype, .device = shape.device});
    };
    return {make(shape.key_dim), make(shape.value_dim)};
  }

  void check(const StageInput& input) const {
    check_pinned({input.keys, input.values});
    if (shape_fixed_ && buffer_.keys.defined()) {
      detail::check_continues(buffer_.keys, input.keys, "keys");
      detail::check_continues(buffer_.values, input.values, "values");
    }
    room_.check_takes(input.seen, input.tokens());
  }

  // Whether all of the step has slots beside those of held tokens.
  bool fits(const StageInput& input) const {
    const std::int64_t first = held_.length() > 0 ? held_.first : input.seen;
    return input.seen + input.tokens() - first <= slots();
  }

  View write_all(const StageInput& input) {
    // Views that this storage gave out, padding included, may come back in.
    const auto apart = [](const at::Tensor& given, const at::Tensor& buffer) {
      return given.is_alias_of(buffer) ? given.clone() : given;
    };
    write({apart(input.keys, buffer_.keys), apart(input.values, buffer_.values)}, input.seen);
    View view = view_of(input);
    add_held(view, {input.visible.offset, input.visible.offset + input.visible.length});
    return view;
  }

  // A step longer than the free slots: its queries read the given tensors behind what is held; of
  // its tokens those that are kept go to their slots, later where held ones still lie there.
  View pass_by(const StageInput& input, Staged& staged) {
    const std::int64_t first = std::max(input.keep_from, input.seen);
    const auto kept = [&](const at::Tensor& t) {
      return t.narrow(2, first - input.seen, staged.held.end - first);
    };
    const KeyValue tail{kept(input.keys), kept(input.values)};
    if (held_.length() == 0) {
      write(tail, first);
    } else {
      staged.owed = Owed{own_copy(tail), first};
    }
    View view = view_of(input);
    add_held(view, {input.visible.offset, input.seen});
    view.segments.push_back({input.keys, input.values, input.seen});
    return view;
  }

  static View view_of(const StageInput& input) {
    View view;
    view.visible = input.visible;
    view.batch = input.keys.size(0);
    return view;
  }

  KeyValue own_copy(const KeyValue& states) const {
    const auto copy = [&](const at::Tensor& t) {
      at::Tensor own =
          memory_->allocate(t.sizes(), {.dtype = t.scalar_type(), .device = t.device()});
      return own.copy_(t);
    };
    return {copy(states.keys), copy(states.values)};
  }

  void write(const KeyValue& states, std::int64_t first) {
    std::int64_t done = 0;
    for (const Range& part : slots_of({first, first + states.keys.size(2)})) {
      part_of(buffer_.keys, part).copy_(states.keys.narrow(2, done, part.length()));
      part_of(buffer_.values, part).copy_(states.values.narrow(2, done, part.length()));
      done += part.length();
    }
  }

  // Appends segments of positions that lie in their slots or are still owed to them.
  void add_held(View& view, Range positions) const {
    const std::int64_t owed_from =
        owed_ ? std::clamp(owed_->first, positions.first, positions.end) : positions.end;
    std::int64_t first = positions.first;
    for (const Range& part : slots_of({positions.first, owed_from})) {
      view.segments.push_back(
          {part_of(content().keys, part), part_of(content().values, part), first});
      first += part.length();
    }
    if (first == positions.end) return;
    const Range part{first - owed_->first, positions.end - owed_->first};
    view.segments.push_back(
        {part_of(owed_->states.keys, part), part_of(owed_->states.values, part), first});
  }

  detail::FixedRoom room_;
  std::shared_ptr<Memory> memory_;
  KeyValue buffer_;  // [batch, kv_heads, slots, head_dim] each, undefined at first
  Range held_;       // positions promised
  std::optional<KeyValue> moved_from_;   // buffers whose content goes to buffer_ when settled
  std::optional<KeyValueShape> pinned_;  // the shape is fixed for life
  bool shape_fixed_ = false;             // ... until a reset
  std::optional<Staged> staged_;
  std::optional<Owed> owed_;  // published tokens that have yet to reach their slots
};

}  // namespace kvcache
