// Some packed keys and values in one piece of memory: see GrowingPackedHistory.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kvcache/core/memory.h"
#include "kvcache/core/packed.h"
#include "kvcache/core/packing.h"
#include "kvcache/core/view.h"
#include "kvcache/core/visitor.h"
#include "kvcache/storage/allocate_slots.h"
#include "kvcache/storage/packed_side.h"
#include "kvcache/storage/token_groups.h"

namespace kvcache::detail {

struct PackedBlock {
  PackedSide keys = {};
  PackedSide values = {};
  Range tokens = {};        // positions that are promised
  std::int64_t slot = 0;    // of tokens.first, in what there is for each token
  TokenGroups groups = {};  // of those tokens; none: groups lie within tokens
  bool all_rows = false;    // one row, which every row reads
  bool shared = false;      // with another cache: nothing is appended
  // All tokens, once a view has asked for them and until something changes: views of many blocks
  // are made at each step.
  mutable std::shared_ptr<const PackedKeyValue> all = {};

  static PackedBlock with_room(const PackedRoom& room, std::int64_t first,
                               const PackedKeyValue& like, Memory& memory) {
    const auto make = [&](const PackedStates& states) {
      const std::int64_t parameters = room.parameters(states.format);
      PackedSide side{.codes = allocate_slots(memory, states.codes, 2, room.slots),
                      .scales = allocate_slots(memory, states.scales, 2, parameters)};
      if (states.offsets.defined()) {
        side.offsets = allocate_slots(memory, states.offsets, 2, parameters);
      }
      return side;
    };
    return {.keys = make(like.keys), .values = make(like.values), .tokens = {first, first}};
  }

  // The tokens of blocks that adjoin and have the same rows as one, with `spare` more room. Throws
  // c10::OutOfMemoryError.
  static PackedBlock merged(std::span<const PackedBlock> blocks, const PackedFormats& formats,
                            const PackedRoom& spare, Memory& memory) {
    PackedBlock result{.tokens = {blocks.front().tokens.first, blocks.back().tokens.end},
                       .all_rows = blocks.front().all_rows,
                       .shared = blocks.front().all_rows};
    for (const PackedBlock& block : blocks) {
      result.groups.valid.insert(result.groups.valid.end(), block.groups.valid.begin(),
                                 block.groups.valid.end());
    }
    const PackedRoom room{.slots = result.tokens.length() + spare.slots,
                          .groups = result.groups.size() + spare.groups};
    const auto merge = [&](PackedSide PackedBlock::*side, const PackedFormat& format) {
      PackedSide& to = result.*side;
      const auto copy = [&](at::Tensor PackedSide::*tensor, std::int64_t slots,
                            const auto& part_of) {
        if (!(blocks.front().*side.*tensor).defined()) return;
        to.*tensor = allocate_slots(memory, blocks.front().*side.*tensor, 2, slots);
        std::int64_t done = 0;
        for (const PackedBlock& block : blocks) {
          const Range part = part_of(block);
          (to.*tensor)
              .narrow(2, done, part.length())
              .copy_((block.*side.*tensor).narrow(2, part.first, part.length()));
          done += part.length();
        }
      };
      const auto slots_of = [](const PackedBlock& block) {
        return Range{block.slot, block.slot + block.tokens.length()};
      };
      const auto parameters_of = [&](const PackedBlock& block) { return block.groups_of(format); };
      copy(&PackedSide::codes, room.slots, slots_of);
      copy(&PackedSide::scales, room.parameters(format), parameters_of);
      copy(&PackedSide::offsets, room.parameters(format), parameters_of);
    };
    merge(&PackedBlock::keys, formats.keys);
    merge(&PackedBlock::values, formats.values);
    return result;
  }

  // Tokens that may still be appended, whole groups.
  std::int64_t room(const PackedFormats& formats) const {
    if (shared) return 0;
    const std::int64_t unit = formats.group_tokens();
    std::int64_t units = (keys.codes.size(2) - slot - tokens.length()) / unit;
    for (const auto& [side, format] :
         {std::pair(&keys, &formats.keys), std::pair(&values, &formats.values)}) {
      if (format->group_tokens > 1) units = std::min(units, side->scales.size(2) - groups.end());
    }
    return std::max<std::int64_t>(units, 0) * unit;
  }

  // Requires as many tokens as there is room for at most.
  void append(const PackedFormats& formats, const PackedKeyValue& added) {
    const std::int64_t count = added.keys.tokens(), unit = formats.group_tokens();
    all.reset();
    write(keys, formats.keys, added.keys);
    write(values, formats.values, added.values);
    tokens.end += count;
    if (unit > 1) groups.append(count, unit);
  }

  // Scales of the last group: [batch or 1, kv_heads, 1, channel_groups].
  at::Tensor last_scales(PackedSide PackedBlock::*side) const {
    const at::Tensor& scales = (this->*side).scales;
    const std::int64_t last = groups.valid.empty() ? slot + tokens.length() - 1 : groups.end() - 1;
    return scales.narrow(2, std::min(last, scales.size(2) - 1), 1);
  }

  // Those of its tokens that are wanted.
  std::shared_ptr<const PackedKeyValue> part(Range wanted, const PackedFormats& formats) const {
    if (!all) {
      all = std::make_shared<PackedKeyValue>(PackedKeyValue{.keys = held(keys, formats.keys),
                                                            .values = held(values, formats.values),
                                                            .dtype = formats.dtype});
    }
    if (wanted.length() == tokens.length()) return all;
    return std::make_shared<PackedKeyValue>(
        kvcache::narrow(*all, wanted.first - tokens.first, wanted.length()));
  }

  // Lets tokens outside `keep` go.
  void trim(Range keep, const PackedFormats& formats) noexcept {
    const Range had = tokens;
    tokens.first = std::clamp(keep.first, had.first, had.end);
    tokens.end = std::clamp(keep.end, tokens.first, had.end);
    if (tokens == had) return;
    all.reset();
    slot += tokens.first - had.first;
    if (formats.group_tokens() > 1) {
      groups.trim(tokens.first - had.first, had.end - tokens.end);
    }
  }

  // `formats`: null in a block of nothing.
  void visit(Visitor& visitor, const PackedFormats* formats) {
    const auto visit_one = [&](PackedSide& side, const PackedNames& names,
                               const PackedFormat* format) {
      return visit_side(visitor, side, names,
                        {.slots = {slot, slot + tokens.length()},
                         .parameters = format != nullptr ? groups_of(*format) : Range{},
                         .all_rows = all_rows,
                         .writable = !shared},
                        format != nullptr && format->has_offsets());
    };
    const bool keys_replaced =
        visit_one(keys, kKeyNames, formats != nullptr ? &formats->keys : nullptr);
    const bool values_replaced =
        visit_one(values, kValueNames, formats != nullptr ? &formats->values : nullptr);
    if (keys_replaced && values_replaced && !all_rows) shared = false;
    all.reset();
  }

  // Throws ValueError for tensors that are not those of these formats, rows and heads.
  void check(const PackedFormats& formats, const KeyValueShape& shape) const {
    groups.check(tokens.length(), formats.group_tokens());
    for (const auto& [side, format] :
         {std::pair(&keys, &formats.keys), std::pair(&values, &formats.values)}) {
      check_rows(*side, shape);
      check_packed(held(*side, *format));
    }
  }

  // Goes on with memory of its own.
  void own(Memory& memory) {
    for (PackedSide* side : {&keys, &values}) {
      for (at::Tensor* tensor : {&side->codes, &side->scales, &side->offsets}) {
        if (!tensor->defined()) continue;
        const at::Tensor copy = allocate_slots(memory, *tensor, 2, tensor->size(2));
        copy.copy_(*tensor);
        *tensor = copy;
      }
    }
    shared = all_rows;
    all.reset();
  }

 private:
  Range groups_of(const PackedFormat& format) const {
    if (format.group_tokens == 1) return {slot, slot + tokens.length()};
    return {groups.first, groups.end()};
  }

  PackedStates held(const PackedSide& side, const PackedFormat& format) const {
    const Range parameters = groups_of(format);
    PackedStates states{.format = format,
                        .codes = side.codes.narrow(2, slot, tokens.length()),
                        .scales = side.scales.narrow(2, parameters.first, parameters.length())};
    if (side.offsets.defined()) {
      states.offsets = side.offsets.narrow(2, parameters.first, parameters.length());
    }
    if (format.group_tokens > 1) states.valid = groups.valid;
    return states;
  }

  void write(const PackedSide& side, const PackedFormat& format, const PackedStates& added) const {
    const std::int64_t end = groups_of(format).end, count = added.scales.size(2);
    side.codes.narrow(2, slot + tokens.length(), added.tokens()).copy_(added.codes);
    side.scales.narrow(2, end, count).copy_(added.scales);
    if (side.offsets.defined()) side.offsets.narrow(2, end, count).copy_(added.offsets);
  }
};

}  // namespace kvcache::detail
