// The older tokens of a storage that was forked: buffers that several caches, or all rows of one,
// read where they lie. Nobody writes to them; what is no longer wanted of them is a matter of
// integers.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/core/memory.h"
#include "kvcache/core/view.h"
#include "kvcache/core/visible.h"
#include "kvcache/core/visitor.h"
#include "kvcache/storage/allocate_slots.h"

namespace kvcache::detail {

struct SharedPart {
  KeyValue states;        // [batch or 1, kv_heads, slots, head_dim] each
  Range tokens;           // positions that are promised
  std::int64_t slot = 0;  // of tokens.first
  bool all_rows = false;  // one row, which every row reads
  bool writable = false;  // no other cache reads it: its rows were replaced since the fork

  KeyValue narrow(Range wanted) const {
    const std::int64_t from = slot + wanted.first - tokens.first;
    return {states.keys.narrow(2, from, wanted.length()),
            states.values.narrow(2, from, wanted.length())};
  }
};

// Parts adjoin, oldest first; those that all rows share come before those with rows.
class SharedParts {
 public:
  bool empty() const { return parts_.empty(); }
  const std::vector<SharedPart>& list() const { return parts_; }

  // Position after the last token; 0 where there are no parts.
  std::int64_t end() const { return parts_.empty() ? 0 : parts_.back().tokens.end; }

  // Adds what comes next. Beyond kMost parts the two neighbours with the fewest tokens are joined
  // first, so that attention reads few segments however often a cache is forked.
  void add(SharedPart part, Memory& memory) {
    if (parts_.size() >= kMost) join_smallest(memory);
    parts_.push_back(std::move(part));
  }

  // Another cache reads them too from now on.
  void share() noexcept {
    for (SharedPart& part : parts_) part.writable = false;
  }

  // Makes parts of one row those of all rows.
  void share_rows() noexcept {
    for (SharedPart& part : parts_) {
      part.all_rows = true;
      part.writable = false;
    }
  }

  // Lets all tokens outside `keep` go, so that end() is keep.end at most. `as_sample`: a last part
  // without tokens stays, to say what keys and values look like.
  void trim(Range keep, bool as_sample) noexcept {
    for (SharedPart& part : parts_) {
      const Range had = part.tokens;
      part.tokens.first = std::clamp(keep.first, had.first, had.end);
      part.tokens.end = std::clamp(keep.end, part.tokens.first, had.end);
      part.slot += part.tokens.first - had.first;
    }
    const bool has_tokens = std::any_of(parts_.begin(), parts_.end(),
                                        [](const auto& part) { return part.tokens.length() > 0; });
    if (as_sample && !has_tokens && !parts_.empty()) {
      parts_.erase(parts_.begin(), parts_.end() - 1);
      parts_.back().tokens = {keep.end, keep.end};
      return;
    }
    std::erase_if(parts_, [](const SharedPart& part) { return part.tokens.length() == 0; });
  }

  // Copies what is promised out of buffers that are far larger, so that this cache does not keep
  // them alive. Where there is no memory for it a part stays where it is.
  void compact(Memory& memory) noexcept {
    for (SharedPart& part : parts_) {
      if (part.states.keys.size(2) / kExcess <= part.tokens.length()) continue;
      try {
        part = joined({part}, memory);
      } catch (const std::exception&) {
        continue;
      }
    }
  }

  void clear() noexcept { parts_.clear(); }

  // Appends the segments of positions `wanted` that lie in parts.
  void add_segments(View& view, Range wanted) const {
    for (const SharedPart& part : parts_) {
      const Range both{std::max(part.tokens.first, wanted.first),
                       std::min(part.tokens.end, wanted.end)};
      if (both.length() <= 0) continue;
      const KeyValue states = part.narrow(both);
      view.segments.push_back({states.keys, states.values, both.first});
    }
  }

  void visit(Visitor& visitor) {
    for (SharedPart& part : parts_) {
      const bool keys_replaced = visit(visitor, part, "keys", part.states.keys);
      const bool values_replaced = visit(visitor, part, "values", part.states.values);
      if (keys_replaced && values_replaced) part.writable = !part.all_rows;
    }
  }

  // The parts that all rows share as one part of its own memory; none if there are none.
  SharedParts clone_all_rows(Memory& memory) const {
    const auto end = std::find_if(parts_.begin(), parts_.end(),
                                  [](const SharedPart& part) { return !part.all_rows; });
    SharedParts copy;
    if (end != parts_.begin()) {
      copy.parts_.push_back(joined({parts_.begin(), end}, memory));
    }
    return copy;
  }

 private:
  static constexpr std::size_t kMost = 8;
  static constexpr std::int64_t kExcess = 8;  // slots for each token of a part that is copied out

  static bool visit(Visitor& visitor, const SharedPart& part, std::string_view name,
                    at::Tensor& tensor) {
    TensorInfo info{.name = name,
                    .token_dim = 2,
                    .live = {part.slot, part.slot + part.tokens.length()},
                    .writable = part.writable};
    if (!part.all_rows) info.batch_dim = 0;
    at::Tensor handle = tensor;
    visitor.tensor(info, handle);
    const bool replaced = !handle.is_same(tensor);
    tensor = std::move(handle);
    return replaced;
  }

  static SharedPart joined(const std::vector<SharedPart>& parts, Memory& memory) {
    const Range tokens{parts.front().tokens.first, parts.back().tokens.end};
    SharedPart result = parts.front();
    result.states =
        allocate_slots(memory, result.states, std::max<std::int64_t>(tokens.length(), 1));
    result.tokens = tokens;
    result.slot = 0;
    result.writable = !result.all_rows;
    for (const SharedPart& part : parts) {
      const KeyValue from = part.narrow(part.tokens), to = result.narrow(part.tokens);
      to.keys.copy_(from.keys);
      to.values.copy_(from.values);
    }
    return result;
  }

  void join_smallest(Memory& memory) {
    auto best = parts_.end();
    const auto tokens = [](auto at) { return at->tokens.length() + (at + 1)->tokens.length(); };
    for (auto at = parts_.begin(); at + 1 != parts_.end(); ++at) {
      if (at->all_rows != (at + 1)->all_rows) continue;
      if (best == parts_.end() || tokens(at) < tokens(best)) best = at;
    }
    *best = joined({best, best + 2}, memory);
    parts_.erase(best + 1);
  }

  std::vector<SharedPart> parts_;
};

}  // namespace kvcache::detail
