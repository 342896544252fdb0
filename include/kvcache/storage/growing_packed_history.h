// Packed tokens that grow with the text: blocks that groups are appended to.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/storage/packed_block.h"
#include "kvcache/storage/packed_history.h"

namespace kvcache::detail {

class GrowingPackedHistory final : public PackedHistory {
 public:
  using PackedHistory::PackedHistory;

  std::int64_t planned_bytes(const KeyValueShape& shape, std::int64_t tokens) const override {
    if (tokens < group_tokens()) return 0;
    return packed_bytes(room_of(whole_groups(std::max(tokens, kFewest))), shape,
                        formats_for(shape.key_dim, shape.value_dim, shape.dtype));
  }

  void reserve(std::int64_t tokens) override { reserved_ = std::max(reserved_, tokens); }

  void stage(const KeyValue& states, std::int64_t first) override {
    if (!staged_) staged_ = blocks_;
    std::vector<PackedBlock>& blocks = *staged_;
    if (!blocks.empty() && blocks.back().tokens.end != first) blocks.clear();
    const auto before = [&](PackedSide PackedBlock::*side) {
      return blocks.empty() ? at::Tensor() : blocks.back().last_scales(side);
    };
    const PackedKeyValue packed =
        encoded(states, before(&PackedBlock::keys), before(&PackedBlock::values));
    const std::int64_t tokens = states.keys.size(2);
    for (std::int64_t done = 0; done < tokens;) {
      std::int64_t taken = blocks.empty() ? 0 : blocks.back().room(*formats());
      if (taken == 0) {
        if (!merge_last(blocks)) {
          blocks.push_back(new_block(packed, first + done, tokens - done));
        }
        taken = blocks.back().room(*formats());
      }
      taken = std::min(taken, tokens - done);
      blocks.back().append(*formats(), kvcache::narrow(packed, done, taken));
      done += taken;
    }
  }

  void publish() noexcept override {
    PackedHistory::publish();
    if (staged_) blocks_.swap(*staged_);
    staged_.reset();
  }

  void discard() noexcept override {
    PackedHistory::discard();
    staged_.reset();
  }

  void trim(Range keep) noexcept override {
    for (PackedBlock& block : blocks_) block.trim(keep, *formats());
    std::erase_if(blocks_, [](const PackedBlock& block) { return block.tokens.length() == 0; });
  }

  void reset() noexcept override {
    PackedHistory::reset();
    staged_.reset();
    blocks_.clear();
    reserved_ = 0;
  }

  void add_segments(View& view, Range wanted) const override {
    for (const PackedBlock& block : blocks_) {
      const Range both{std::max(block.tokens.first, wanted.first),
                       std::min(block.tokens.end, wanted.end)};
      if (both.length() <= 0) continue;
      view.segments.push_back({.first = both.first, .packed = block.part(both, *formats())});
    }
  }

  void visit(Visitor& visitor, Range held) override {
    TokenGroups groups;
    for (const PackedBlock& block : blocks_) {
      groups.valid.insert(groups.valid.end(), block.groups.valid.begin(), block.groups.valid.end());
    }
    groups = visit_groups(visitor, groups);
    for (PackedBlock& block : blocks_) block.visit(visitor, formats());
    if (!blocks_.empty()) return;
    PackedBlock filled{.tokens = held, .groups = std::move(groups)};
    filled.visit(visitor, formats());
    if (held.length() > 0 && filled.keys.codes.defined()) blocks_.push_back(std::move(filled));
  }

  void check_filled(const std::optional<KeyValueShape>& shape, Range held) const override {
    check_value(held.length() == 0 || (!blocks_.empty() && formats() != nullptr && shape),
                "there are no packed keys and values for tokens ", held.first, " to ", held.end);
    for (const PackedBlock& block : blocks_) block.check(*formats(), *shape);
  }

  std::unique_ptr<PackedHistory> clone() const override {
    std::unique_ptr<GrowingPackedHistory> copy(new GrowingPackedHistory(*this));
    for (PackedBlock& block : copy->blocks_) block.own(*memory());
    return copy;
  }

  // Neither appends to the blocks that both read.
  std::unique_ptr<PackedHistory> fork() override {
    for (PackedBlock& block : blocks_) block.shared = true;
    return std::unique_ptr<PackedHistory>(new GrowingPackedHistory(*this));
  }

  // Makes blocks of one row those of all rows.
  void share_rows() noexcept override {
    for (PackedBlock& block : blocks_) block.all_rows = block.shared = true;
  }

 protected:
  bool empty() const override { return blocks_.empty(); }

 private:
  static constexpr std::int64_t kFewest = 128;    // tokens of a block, and ...
  static constexpr std::int64_t kMost = 4096;     // ... of one that grows with the history ...
  static constexpr std::int64_t kFraction = 16;   // ... to its 16th
  static constexpr std::size_t kMostBlocks = 64;  // beyond which small ones become one ...
  static constexpr std::size_t kKeptBlocks = 16;  // ... behind so many

  GrowingPackedHistory(const GrowingPackedHistory&) = default;

  // One more group, as a crop may leave one that is not full.
  PackedRoom room_of(std::int64_t slots) const {
    return {.slots = slots, .groups = slots / group_tokens() + 1};
  }

  // With room for `tokens` tokens at least. What other caches share does not count: it may be of no
  // more use to this one than a few tokens beyond it.
  PackedBlock new_block(const PackedKeyValue& like, std::int64_t first, std::int64_t tokens) const {
    std::int64_t own = 0;  // tokens
    bool any_shared = false;
    for (const PackedBlock& block : *staged_) {
      any_shared = any_shared || block.shared;
      if (!block.shared) own += block.tokens.length();
    }
    const std::int64_t growth = std::clamp(own / kFraction, kFewest, kMost);
    const std::int64_t asked = any_shared ? 0 : reserved_ - own;
    return PackedBlock::with_room(room_of(whole_groups(std::max({growth, tokens, asked}))), first,
                                  like, *memory());
  }

  // Many forks of forks leave many blocks of a few tokens, which become one.
  // False: there are no such blocks.
  bool merge_last(std::vector<PackedBlock>& blocks) const {
    if (blocks.size() < kMostBlocks) return false;
    auto first = blocks.end();
    while (static_cast<std::size_t>(first - blocks.begin()) > kKeptBlocks &&
           std::prev(first)->all_rows == blocks.back().all_rows &&
           std::prev(first)->tokens.length() <= kFewest) {
      --first;
    }
    if (blocks.end() - first < 2 || blocks.back().all_rows) return false;
    PackedBlock merged = PackedBlock::merged({first, blocks.end()}, *formats(),
                                             room_of(whole_groups(kFewest)), *memory());
    blocks.erase(first, blocks.end());
    blocks.push_back(std::move(merged));
    return true;
  }

  std::vector<PackedBlock> blocks_;                 // adjoin, oldest first
  std::optional<std::vector<PackedBlock>> staged_;  // what they will be
  std::int64_t reserved_ = 0;                       // tokens asked for by reserve()
};

}  // namespace kvcache::detail
