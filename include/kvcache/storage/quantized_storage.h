// Keys and values of which the older ones are packed in few bits and the last ones stay as they
// are. Groups are packed once, as their tokens leave the recent window, and never change; the
// queries of a step see that step's own tokens as they are.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/storage/fixed_packed_history.h"
#include "kvcache/storage/fixed_room.h"
#include "kvcache/storage/fixed_storage.h"
#include "kvcache/storage/growing_packed_history.h"
#include "kvcache/storage/growing_storage.h"
#include "kvcache/storage/inner_visitor.h"
#include "kvcache/storage/recent_window.h"
#include "kvcache/storage/storage.h"

namespace kvcache {

struct QuantizedStorageOptions {
  std::shared_ptr<const Codec> keys;
  std::shared_ptr<const Codec> values;
  std::int64_t residual_length = 128;             // tokens of the recent window, at least; 0: none
  std::int64_t pinned_tokens = 0;                 // first ones that are never packed
  std::optional<FixedStorageOptions> fixed = {};  // absent: it grows
};

class QuantizedStorage final : public Storage {
 public:
  QuantizedStorage(const QuantizedStorageOptions& options, const std::shared_ptr<Memory>& memory)
      : window_{.residual_length = options.residual_length,
                .pinned_tokens = options.pinned_tokens} {
    const detail::CodecPair codecs{options.keys, options.values};
    if (options.fixed) {
      room_.emplace(*options.fixed);
      packed_ = std::make_unique<detail::FixedPackedHistory>(codecs, memory);
      hold_as_room_says();
    } else {
      packed_ = std::make_unique<detail::GrowingPackedHistory>(codecs, memory);
    }
    window_.group_tokens = packed_->group_tokens();
    recent_ = dense_storage(recent_tokens_at_most(), /*ring=*/true, memory);
    if (window_.pinned_tokens > 0)
      pinned_ = dense_storage(window_.pinned_tokens, /*ring=*/false, memory);
  }

  Range held() const override { return held_; }
  std::optional<std::int64_t> capacity() const override {
    return room_ ? room_->capacity() : std::nullopt;
  }

  void reserve(std::int64_t tokens) override {
    recent_->reserve(std::min(tokens, recent_slots()));
    if (!room_) packed_->reserve(tokens - window_.residual_length - window_.pinned_tokens);
  }

  std::int64_t planned_bytes(const KeyValueShape& shape, std::int64_t tokens) const override {
    const bool pins = pinned_ && tokens - window_.residual_length >= window_.pinned_tokens;
    return recent_->planned_bytes(shape, std::min(tokens, recent_slots())) +
           packed_->planned_bytes(shape, tokens - window_.residual_length - window_.pinned_tokens) +
           (pins ? pinned_->planned_bytes(shape, window_.pinned_tokens) : 0);
  }

  std::int64_t record_room(std::optional<std::int64_t> asked) const override {
    return room_ ? room_->record_room(asked, held_.end == 0) : Storage::record_room(asked);
  }
  std::int64_t most_record() const override {
    return room_ ? room_->most_record(held_.end == 0) : Storage::most_record();
  }
  void record(std::int64_t tokens) noexcept override {
    if (!room_) return;
    room_->record(tokens);
    hold_as_room_says();
  }

  std::optional<FixedLayout> layout() const override {
    return room_ ? std::optional(FixedLayout{.slots = room_->slots()}) : std::nullopt;
  }
  void take_layout(const FixedLayout& layout) noexcept override {
    if (!room_) return;
    room_->set_slots(layout.slots);
    hold_as_room_says();
  }

  // Those of the recent window, of the pinned tokens and of the packed ones.
  std::vector<at::Tensor> buffers() const override {
    std::vector<at::Tensor> all = recent_->buffers();
    const auto add = [&](const std::vector<at::Tensor>& more) {
      all.insert(all.end(), more.begin(), more.end());
    };
    if (pinned_) add(pinned_->buffers());
    add(packed_->buffers());
    return all;
  }
  void move_into(const std::vector<at::Tensor>& buffers) noexcept override {
    if (!room_ || buffers.size() != this->buffers().size()) return;
    auto next = buffers.begin();
    const auto take = [&](std::size_t count) {
      next += static_cast<std::ptrdiff_t>(count);
      return std::vector<at::Tensor>(next - static_cast<std::ptrdiff_t>(count), next);
    };
    recent_->move_into(take(recent_->buffers().size()));
    if (pinned_) pinned_->move_into(take(pinned_->buffers().size()));
    packed_->move_into(take(packed_->buffers().size()));
  }

  View stage(const StageInput& input) override {
    if (room_) room_->check_takes(input.seen, input.tokens());
    settle();
    try {
      packed_->begin(shape_of({input.keys, input.values}));
      return stage_recent(input);
    } catch (...) {
      discard();
      throw;
    }
  }

  View read(const Visible& visible) const override {
    const std::int64_t first = std::max(visible.offset, packed_end_);
    const View recent =
        recent_->read({.length = visible.offset + visible.length - first, .offset = first});
    return joined_view(visible, recent);
  }

  void seal() override { recent_->seal(); }  // stage packed what leaves the recent window

  void publish() noexcept override {
    recent_->publish();
    packed_->publish();
    if (pinned_) pinned_->publish();
    if (!staged_) return;
    held_ = staged_->held;
    packed_end_ = staged_->packed_end;
    staged_.reset();
    if (pinned_ && held_.first >= pinned_end()) forget_pinned();
    packed_->trim({held_.first, packed_end_});
  }

  void settle() override {
    recent_->settle();
    packed_->settle();
    if (pinned_) pinned_->settle();
  }

  void discard() noexcept override {
    recent_->discard();
    packed_->discard();
    if (pinned_) pinned_->discard();
    staged_.reset();
  }

  bool can_trim(Range keep) const override { return packed_->can_trim(keep); }

  void trim(Range keep) override {
    settle();
    const std::int64_t packed_end = std::clamp(packed_end_, keep.first, keep.end);
    recent_->trim({packed_end, keep.end});
    packed_->trim({keep.first, packed_end});
    packed_end_ = packed_end;
    held_ = keep;
    if (!pinned_ || pinned_end() == 0) return;
    if (keep.first >= pinned_end() || packed_end == 0) {
      forget_pinned();
    } else {
      pinned_->trim({0, std::min(pinned_end(), packed_end)});
    }
  }

  void reset() noexcept override {
    staged_.reset();
    recent_->reset();
    packed_->reset();
    if (pinned_) pinned_->reset();
    held_ = {};
    packed_end_ = 0;
  }

  void visit(Visitor& visitor) override {
    settle();
    packed_->visit_formats(visitor);
    visitor.count("held_first", held_.first);
    visitor.count("held_end", held_.end);
    std::int64_t before_recent = packed_end_ - held_.first;
    visitor.count("tokens_before_recent", before_recent);
    check_value(before_recent >= 0 && before_recent <= held_.length(), before_recent, " of ",
                held_.length(), " tokens cannot lie before the recent window");
    packed_end_ = held_.first + before_recent;
    const bool dense = packed_end_ <= held_.first;  // all of it
    detail::InnerVisitor recent(visitor, {.held = {packed_end_, held_.end}, .of_some = !dense});
    recent_->visit(recent);
    if (pinned_) {
      std::int64_t end = pinned_end();
      visitor.count("pinned_end", end);
      check_value(end >= 0 && end <= std::min(window_.pinned_tokens,
                                              std::max<std::int64_t>(packed_end_, 0)),
                  "tokens up to ", end, " are pinned, of at most ", window_.pinned_tokens,
                  " and of ", packed_end_, " beyond the recent window");
      detail::InnerVisitor pinned(visitor, {.held = {0, end},
                                            .of_some = true,
                                            .keys = "pinned_keys",
                                            .values = "pinned_values",
                                            .shape_fixed = "pinned_shape_fixed"});
      pinned_->visit(pinned);
      std::optional<KeyValueShape> shape = pinned.shape();
      if (shape && recent.shape() && !pinned.has_rows()) shape->batch = recent.shape()->batch;
      check_value(end == 0 || shape == recent.shape(),
                  "pinned keys and values are not of the shape of those after them");
    }
    filled_like_ = recent.shape();
    if (filled_like_) packed_->settle_formats(*filled_like_);
    packed_->visit(visitor, packed_range());
  }

  void check_filled(const LayerSpec& spec, std::int64_t seen) const override {
    recent_->check_filled(spec, seen);
    check_value(packed_end_ >= held_.first && packed_end_ <= held_.end, "tokens up to ",
                packed_end_, " are packed, of ", held_.first, " to ", held_.end);
    if (pinned_) pinned_->check_filled(spec, pinned_end());
    packed_->check_filled(filled_like_, packed_range());
  }

  std::unique_ptr<Storage> clone() const override {
    return std::unique_ptr<Storage>(
        new QuantizedStorage(*this, {.packed = packed_->clone(),
                                     .recent = recent_->clone(),
                                     .pinned = pinned_ ? pinned_->clone() : nullptr}));
  }

  std::unique_ptr<Storage> fork() override {
    return std::unique_ptr<Storage>(
        new QuantizedStorage(*this, {.packed = packed_->fork(),
                                     .recent = recent_->fork(),
                                     .pinned = pinned_ ? pinned_->fork() : nullptr}));
  }

  void share_rows() override {
    packed_->share_rows();
    recent_->share_rows();
    if (pinned_) pinned_->share_rows();
  }

 private:
  static constexpr std::int64_t kAtOnce = 1024;  // tokens that are packed together, about

  struct Staged {
    Range held;  // once published
    std::int64_t packed_end;
  };

  struct Parts {
    std::unique_ptr<detail::PackedHistory> packed;
    std::unique_ptr<Storage> recent;
    std::unique_ptr<Storage> pinned;
  };

  QuantizedStorage(const QuantizedStorage& other, Parts parts)
      : window_(other.window_),
        room_(other.room_),
        packed_(std::move(parts.packed)),
        recent_(std::move(parts.recent)),
        pinned_(std::move(parts.pinned)),
        held_(other.held_),
        packed_end_(other.packed_end_) {}

  std::unique_ptr<Storage> dense_storage(std::int64_t columns, bool ring,
                                         const std::shared_ptr<Memory>& memory) const {
    if (!room_) return std::make_unique<GrowingStorage>(memory);
    return std::make_unique<FixedStorage>(FixedStorageOptions{.columns = columns, .ring = ring},
                                          memory);
  }

  // Tokens that may be packed at a time: of all that there is room for whole groups, of a window
  // also those that it cuts.
  void hold_as_room_says() noexcept {
    const std::int64_t beyond = std::max<std::int64_t>(room_->slots() - window_.residual_length, 0);
    const std::int64_t unit = packed_->group_tokens();
    packed_->reserve(room_->capacity() ? beyond / unit * unit : beyond);
  }

  // Tokens of the recent window between steps.
  std::int64_t recent_tokens_at_most() const {
    const std::int64_t most = window_.most_tokens();
    return room_ ? std::min(most, room_->most_slots()) : most;
  }

  // The recent window moves along its buffer.
  std::int64_t recent_slots() const { return 2 * recent_tokens_at_most(); }

  // Buffers of a fixed size stay, and their shape with them.
  void forget_pinned() noexcept { room_ ? pinned_->trim({0, 0}) : pinned_->reset(); }

  // Position that the pinned tokens end at; 0: there are none.
  std::int64_t pinned_end() const { return pinned_ ? pinned_->held().end : 0; }

  // Positions that are packed.
  Range packed_range() const {
    return {std::max(held_.first, pinned_end()),
            std::max({held_.first, pinned_end(), packed_end_})};
  }

  View stage_recent(const StageInput& input) {
    const std::int64_t end = input.seen + input.tokens();
    const detail::Leaving leaving = window_.leaving(packed_end_, end, input.keep_from);
    // All of the window, also what no query of the step sees: it may be packed.
    const View recent =
        recent_->stage({.keys = input.keys,
                        .values = input.values,
                        .seen = input.seen,
                        .visible = {.length = end - packed_end_, .offset = packed_end_},
                        .keep_from = leaving.packed_end});
    View view = joined_view(input.visible, recent);
    stage_leaving(leaving, recent);
    staged_ = {.held = {std::max(held_.first, input.keep_from), end},
               .packed_end = leaving.packed_end};
    return view;
  }

  // Packs what leaves the recent window, some tokens at a time. Not later: `recent` may alias what
  // the step was given, which is the caller's again once it is staged.
  void stage_leaving(const detail::Leaving& leaving, const View& recent) {
    if (leaving.pin.length() > 0) {
      const KeyValue states = tokens_of(recent, leaving.pin);
      pinned_->reserve(window_.pinned_tokens);
      pinned_->stage({.keys = states.keys,
                      .values = states.values,
                      .seen = leaving.pin.first,
                      .visible = {.length = leaving.pin.end, .offset = 0},
                      .keep_from = 0});
    }
    const std::int64_t unit = packed_->group_tokens();
    const std::int64_t at_once = std::max<std::int64_t>(kAtOnce / unit, 1) * unit;
    for (std::int64_t first = leaving.pack.first; first < leaving.pack.end;) {
      const std::int64_t tokens = std::min(at_once, leaving.pack.end - first);
      packed_->stage(tokens_of(recent, {first, first + tokens}), first);
      first += tokens;
    }
  }

  // The pinned and packed tokens of `visible`, and behind them those of `recent`.
  View joined_view(const Visible& visible, const View& recent) const {
    View view;
    view.visible = visible;
    view.batch = recent.batch;
    const std::int64_t pinned = std::min(pinned_end(), visible.offset + visible.length);
    if (visible.offset < pinned) {
      View first = pinned_->read({.length = pinned - visible.offset, .offset = visible.offset});
      for (Segment& segment : first.segments) view.segments.push_back(std::move(segment));
    }
    packed_->add_segments(view,
                          {visible.offset, std::min(packed_end_, visible.offset + visible.length)});
    for (const Segment& segment : recent.segments) {
      const std::int64_t hidden = std::max<std::int64_t>(visible.offset - segment.first, 0);
      const std::int64_t shown = segment.length() - hidden;
      if (shown <= 0) continue;
      const KeyValue states = dense(segment, hidden, shown);
      view.segments.push_back({states.keys, states.values, segment.first + hidden});
    }
    return view;
  }

  // Positions of a view of dense segments, as one pair of tensors.
  static KeyValue tokens_of(const View& view, Range positions) {
    std::vector<at::Tensor> keys, values;
    for (const Segment& segment : view.segments) {
      const Range both{std::max(positions.first, segment.first),
                       std::min(positions.end, segment.first + segment.length())};
      if (both.length() <= 0) continue;
      const KeyValue part = dense(segment, both.first - segment.first, both.length());
      keys.push_back(part.keys.expand({view.batch, -1, -1, -1}));
      values.push_back(part.values.expand({view.batch, -1, -1, -1}));
    }
    if (keys.size() == 1) return {keys[0], values[0]};
    return {at::cat(keys, 2), at::cat(values, 2)};
  }

  detail::RecentWindow window_;
  std::optional<detail::FixedRoom> room_;  // absent: it grows
  std::unique_ptr<detail::PackedHistory> packed_;
  std::unique_ptr<Storage> recent_;  // positions from packed_end_ on
  std::unique_ptr<Storage> pinned_;  // the first positions; null: none ever are
  Range held_;                       // positions promised
  std::int64_t packed_end_ = 0;
  std::optional<KeyValueShape> filled_like_;  // the recent window, as a visitor saw it last
  std::optional<Staged> staged_;
};

}  // namespace kvcache
