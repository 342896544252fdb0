// Packed tokens in buffers of a fixed size, whose addresses stay. Position p lies in slot p modulo
// the number of slots; groups over tokens have a table that comes round by itself, as a crop may
// leave groups that are not full. What a step packs is owed to the buffers until the next touch, as
// what it replaces is promised until then.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/packing.h"
#include "kvcache/storage/fixed_room.h"
#include "kvcache/storage/packed_history.h"
#include "kvcache/storage/token_groups.h"

namespace kvcache::detail {

class FixedPackedHistory final : public PackedHistory {
 public:
  using PackedHistory::PackedHistory;

  std::int64_t planned_bytes(const KeyValueShape& shape, std::int64_t) const override {
    return packed_bytes(room(), shape, formats_for(shape.key_dim, shape.value_dim, shape.dtype));
  }

  void reserve(std::int64_t tokens) override { most_ = std::max(most_, tokens); }

  void begin(const KeyValueShape& shape) override {
    PackedHistory::begin(shape);
    if (fits(shape)) return;
    Sides made{allocate(shape, formats()->keys), allocate(shape, formats()->values)};
    before_ = std::exchange(sides_, std::move(made));
  }

  void stage(const KeyValue& states, std::int64_t first) override {
    if (!staged_) staged_ = {.tokens = tokens_, .groups = groups_};
    if (staged_->tokens.length() == 0 || staged_->tokens.end != first) {
      staged_ = {.tokens = {first, first}};
    }
    const std::int64_t end = first + states.keys.size(2);
    staged_->owed.push_back(
        {.states = encoded(states, last_scales(&Sides::keys), last_scales(&Sides::values)),
         .tokens = {first, end},
         .group = staged_->groups.end()});
    staged_->tokens.end = end;
    if (group_tokens() > 1) staged_->groups.append(end - first, group_tokens());
  }

  void publish() noexcept override {
    PackedHistory::publish();
    before_.reset();
    if (!staged_) return;
    tokens_ = staged_->tokens;
    groups_ = std::move(staged_->groups);
    owed_ = std::move(staged_->owed);
    staged_.reset();
  }

  void settle() override {
    if (moved_from_) {
      each_tensor(sides_, *moved_from_, [](at::Tensor& to, const at::Tensor& from) {
        if (to.defined()) to.copy_(from);
      });
      moved_from_.reset();
    }
    for (const Owed& owed : owed_) {
      write(sides_.keys, owed.states.keys, owed);
      write(sides_.values, owed.states.values, owed);
    }
    owed_.clear();
  }

  void discard() noexcept override {
    PackedHistory::discard();
    staged_.reset();
    if (before_) sides_ = std::move(*before_);
    before_.reset();
  }

  // Whether the table would have room for the groups of as many tokens as there are slots.
  bool can_trim(Range keep) const override {
    if (group_tokens() == 1) return true;
    const Range kept = both(tokens_, keep);
    TokenGroups groups = groups_;
    groups.trim(kept.first - tokens_.first, tokens_.end - kept.end);
    return groups.size() + (room().slots - kept.length()) / group_tokens() <= room().groups;
  }

  void trim(Range keep) noexcept override {
    const Range kept = both(tokens_, keep);
    groups_.trim(kept.first - tokens_.first, tokens_.end - kept.end);
    tokens_ = kept;
    if (kept.length() > 0) return;
    groups_ = {};
    owed_.clear();
  }

  // The buffers stay.
  void reset() noexcept override {
    discard();
    PackedHistory::reset();
    moved_from_.reset();
    owed_.clear();
    tokens_ = {};
    groups_ = {};
  }

  void add_segments(View& view, Range wanted) const override {
    const std::int64_t owed_from =
        owed_.empty() ? tokens_.end : std::max(owed_.front().tokens.first, tokens_.first);
    const Range here = both({tokens_.first, owed_from}, wanted);
    for (const Range& piece : pieces(here)) add(view, piece.first, piece_at(piece));
    for (const Owed& owed : owed_) {
      const Range part = both(both(owed.tokens, tokens_), wanted);
      if (part.length() == 0) continue;
      const std::int64_t first = part.first - owed.tokens.first;
      add(view, part.first, kvcache::narrow(owed.states, first, part.length()));
    }
  }

  void visit(Visitor& visitor, Range held) override {
    settle();
    TokenGroups groups = visit_groups(visitor, groups_);
    if (tokens_.length() == 0 && held.length() > 0) {
      tokens_ = held;
      groups_ = std::move(groups);
      check_value(held.length() <= room().slots && groups_.size() <= room().groups, "there are ",
                  held.length(), " packed tokens in ", groups_.size(),
                  " groups to hold, but the layer's buffers have ", room().slots, " slots and ",
                  room().groups, " groups; make the cache with a larger max_cache_len");
    }
    const auto from = [](std::int64_t first, std::int64_t length, std::int64_t slots) {
      const std::int64_t slot = slots > 0 ? first % slots : 0;
      return Range{slot, slot + length};
    };
    const Range slots = from(tokens_.first, tokens_.length(), room().slots);
    const Range entries = from(groups_.first, groups_.size(), room().groups);
    const auto visit_one = [&](PackedSide& side, const PackedNames& names,
                               const PackedFormat* format) {
      const bool over_tokens = format != nullptr && format->group_tokens > 1;
      visit_side(visitor, side, names,
                 {.slots = slots,
                  .parameters = over_tokens ? entries : slots,
                  .fixed = room().slots,
                  .fixed_parameters = over_tokens ? room().groups : room().slots},
                 format != nullptr && format->has_offsets());
    };
    visit_one(sides_.keys, kKeyNames, formats() != nullptr ? &formats()->keys : nullptr);
    visit_one(sides_.values, kValueNames, formats() != nullptr ? &formats()->values : nullptr);
  }

  void check_filled(const std::optional<KeyValueShape>& shape, Range held) const override {
    groups_.check(held.length(), held.length() > 0 ? group_tokens() : 1);
    if (held.length() == 0) return;
    check_value(formats() != nullptr && shape && tokens_.length() == held.length(),
                "there are no packed keys and values for tokens ", held.first, " to ", held.end);
    for (const PackedSide* side : {&sides_.keys, &sides_.values}) {
      check_rows(*side, *shape);
      check_value(side->codes.size(2) == room().slots, "there are ", side->codes.size(2),
                  " slots of packed tokens; the layer has ", room().slots);
    }
    for (const Range& piece : pieces(held)) {
      const PackedKeyValue states = piece_at(piece);
      check_packed(states.keys);
      check_packed(states.values);
    }
  }

  std::vector<at::Tensor> buffers() const override {
    return {sides_.keys.codes,   sides_.keys.scales,   sides_.keys.offsets,
            sides_.values.codes, sides_.values.scales, sides_.values.offsets};
  }

  void move_into(const std::vector<at::Tensor>& buffers) noexcept override {
    if (buffers.size() != 6 || !buffers[0].defined()) return;
    Sides given{{buffers[0], buffers[1], buffers[2]}, {buffers[3], buffers[4], buffers[5]}};
    if (given.keys.codes.size(2) != room().slots) return;
    if (sides_.keys.codes.defined()) {
      bool alike = true;
      each_tensor(given, sides_, [&](at::Tensor& one, const at::Tensor& other) {
        alike = alike && one.defined() == other.defined() &&
                (!one.defined() ||
                 (one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() &&
                  one.device() == other.device()));
      });
      if (!alike) return;
      moved_from_ = std::move(sides_);
    }
    sides_ = std::move(given);
  }

  std::unique_ptr<PackedHistory> clone() const override {
    std::unique_ptr<FixedPackedHistory> copy(new FixedPackedHistory(*this));
    copy->moved_from_.reset();
    copy->staged_.reset();
    each_tensor(copy->sides_, content(), [&](at::Tensor& to, const at::Tensor& from) {
      if (!from.defined()) return;
      to = memory()->allocate(from.sizes(), {.dtype = from.scalar_type(), .device = from.device()});
      to.copy_(from);
    });
    return copy;
  }

 protected:
  bool empty() const override { return tokens_.length() == 0; }

 private:
  struct Sides {
    PackedSide keys = {};
    PackedSide values = {};
  };

  // What is published, or will be, and has yet to reach its slots.
  struct Owed {
    PackedKeyValue states;
    Range tokens;
    std::int64_t group;  // entry of the first, where groups are over tokens
  };

  struct Staged {
    Range tokens = {};
    TokenGroups groups = {};
    std::vector<Owed> owed = {};
  };

  FixedPackedHistory(const FixedPackedHistory&) = default;

  template <typename Call>
  static void each_tensor(Sides& to, const Sides& from, const Call& call) {
    for (const auto side : {&Sides::keys, &Sides::values}) {
      for (const auto tensor : {&PackedSide::codes, &PackedSide::scales, &PackedSide::offsets}) {
        call((to.*side).*tensor, (from.*side).*tensor);
      }
    }
  }

  static void add(View& view, std::int64_t first, PackedKeyValue packed) {
    view.segments.push_back(
        {.first = first, .packed = std::make_shared<PackedKeyValue>(std::move(packed))});
  }

  // Tokens that are in both; none, within `of`, where there are none.
  static Range both(Range of, Range other) {
    const std::int64_t first = std::clamp(other.first, of.first, of.end);
    return {first, std::clamp(other.end, first, of.end)};
  }

  // The first group kept may be one of which most tokens are not; crops leave some that are not
  // full, and each of these takes an entry of the table.
  PackedRoom room() const {
    const std::int64_t unit = group_tokens();
    const std::int64_t slots = most_ > 0 ? whole_groups(most_) + unit : 0;
    if (unit == 1) return {.slots = slots};
    return {.slots = slots,
            .groups = std::min(slots, slots / unit + kSpareGroups + slots / unit / 8)};
  }
  static constexpr std::int64_t kSpareGroups = 16;

  bool fits(const KeyValueShape& shape) const {
    const auto alike = [&](const PackedSide& side, const PackedFormat& format) {
      return side.codes.defined() &&
             side.codes.sizes() == at::IntArrayRef({shape.batch, shape.kv_heads, room().slots,
                                                    format.code_bytes()}) &&
             side.codes.device() == shape.device &&
             side.scales.scalar_type() == format.parameter_dtype;
    };
    return alike(sides_.keys, formats()->keys) && alike(sides_.values, formats()->values);
  }

  PackedSide allocate(const KeyValueShape& shape, const PackedFormat& format) const {
    const auto make = [&](std::int64_t slots, std::int64_t last, at::ScalarType dtype) {
      return memory()->allocate({shape.batch, shape.kv_heads, slots, last},
                                {.dtype = dtype, .device = shape.device});
    };
    const auto parameters = [&] {
      return make(room().parameters(format), format.channel_groups(), format.parameter_dtype);
    };
    PackedSide side{.codes = make(room().slots, format.code_bytes(), at::kByte),
                    .scales = parameters()};
    if (format.has_offsets()) side.offsets = parameters();
    return side;
  }

  // Where what is held lies until it is settled.
  const Sides& content() const { return moved_from_ ? *moved_from_ : sides_; }

  // Of the last group before what is staged next; undefined where there is none.
  at::Tensor last_scales(PackedSide Sides::*side) const {
    if (!staged_->owed.empty()) {
      const PackedKeyValue& last = staged_->owed.back().states;
      const at::Tensor& scales = (side == &Sides::keys ? last.keys : last.values).scales;
      return scales.narrow(2, scales.size(2) - 1, 1);
    }
    if (staged_->tokens.length() == 0) return {};
    const at::Tensor& scales = (content().*side).scales;
    const PackedFormat& format = side == &Sides::keys ? formats()->keys : formats()->values;
    const std::int64_t last =
        format.group_tokens == 1 ? staged_->tokens.end - 1 : staged_->groups.end() - 1;
    return scales.narrow(2, last % scales.size(2), 1);
  }

  void write(const PackedSide& side, const PackedStates& states, const Owed& owed) const {
    write(side.codes, states.codes, owed.tokens);
    const Range parameters = states.format.group_tokens == 1
                                 ? owed.tokens
                                 : Range{owed.group, owed.group + states.scales.size(2)};
    write(side.scales, states.scales, parameters);
    if (side.offsets.defined()) write(side.offsets, states.offsets, parameters);
  }

  static void write(const at::Tensor& ring, const at::Tensor& from, Range positions) {
    std::int64_t done = 0;
    for (const Range& part : ring_parts(positions, ring.size(2))) {
      ring.narrow(2, part.first, part.length()).copy_(from.narrow(2, done, part.length()));
      done += part.length();
    }
  }

  // Positions, all held, in pieces within which neither slots nor entries come round.
  std::vector<Range> pieces(Range positions) const {
    std::vector<Range> result;
    if (positions.length() == 0) return result;
    std::vector<std::int64_t> cuts{(positions.first / room().slots + 1) * room().slots};
    std::int64_t first = tokens_.first;  // of a group
    for (std::int64_t i = 0; i < groups_.size(); ++i) {
      if ((groups_.first + i) % room().groups == 0) cuts.push_back(first);
      first += groups_.valid[static_cast<std::size_t>(i)];
    }
    cuts.push_back(positions.end);
    std::sort(cuts.begin(), cuts.end());
    std::int64_t begin = positions.first;
    for (const std::int64_t cut : cuts) {
      const std::int64_t end = std::min(cut, positions.end);
      if (end <= begin) continue;
      result.push_back({begin, end});
      begin = end;
    }
    return result;
  }

  PackedKeyValue piece_at(Range piece) const {
    std::int64_t index = 0, before = tokens_.first;
    std::vector<std::int64_t> valid;
    for (const std::int64_t each : groups_.valid) {
      const std::int64_t shown = std::min(before + each, piece.end) - std::max(before, piece.first);
      if (shown > 0) valid.push_back(shown);
      if (before + each <= piece.first) ++index;
      before += each;
    }
    const std::int64_t slot = piece.first % room().slots;
    const auto states_of = [&](const PackedSide& side, const PackedFormat& format) {
      const bool over_tokens = format.group_tokens > 1;
      const std::int64_t first = over_tokens ? (groups_.first + index) % room().groups : slot;
      const std::int64_t count =
          over_tokens ? static_cast<std::int64_t>(valid.size()) : piece.length();
      PackedStates states{.format = format,
                          .codes = side.codes.narrow(2, slot, piece.length()),
                          .scales = side.scales.narrow(2, first, count)};
      if (side.offsets.defined()) states.offsets = side.offsets.narrow(2, first, count);
      if (over_tokens) states.valid = valid;
      return states;
    };
    return {.keys = states_of(content().keys, formats()->keys),
            .values = states_of(content().values, formats()->values),
            .dtype = formats()->dtype};
  }

  std::int64_t most_ = 0;  // tokens
  Sides sides_;
  std::optional<Sides> before_;      // discard goes back to it
  std::optional<Sides> moved_from_;  // whose content goes to sides_ when settled
  Range tokens_;                     // positions that are here
  TokenGroups groups_;               // of those tokens
  std::optional<Staged> staged_;
  std::vector<Owed> owed_;  // adjoin, and are the last of tokens_
};

}  // namespace kvcache::detail
