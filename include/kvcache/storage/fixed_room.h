// How many tokens a storage of a fixed size has room for, and where in its buffers they go.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "kvcache/core/errors.h"
#include "kvcache/core/visible.h"
#include "kvcache/storage/storage.h"

namespace kvcache {

struct FixedStorageOptions {
  std::int64_t columns = 1;     // tokens: all that are kept, or a ring's window
  bool ring = false;            // older tokens give way; else a token too many is refused
  std::int64_t slack = 0;       // tokens of a ring beyond its window, for past recording
  std::int64_t most_slack = 0;  // beyond which recording makes no room
};

namespace detail {

class FixedRoom {
 public:
  explicit FixedRoom(const FixedStorageOptions& options)
      : options_(options), slots_(options.columns + options.slack) {}

  std::int64_t columns() const { return options_.columns; }
  std::int64_t slots() const { return slots_; }

  // That recording can make room for.
  std::int64_t most_slots() const {
    return std::max(slots_, options_.columns + options_.most_slack);
  }
  void set_slots(std::int64_t slots) noexcept { slots_ = slots; }

  // Tokens it can hold in all; absent: older ones give way.
  std::optional<std::int64_t> capacity() const {
    return options_.ring ? std::nullopt : std::optional(slots_);
  }

  // See Storage. `empty`: nothing was held yet; a ring is made larger before its first token only.
  std::int64_t record_room(std::optional<std::int64_t> asked, bool empty) const {
    const std::int64_t slack = slots_ - options_.columns;
    const std::int64_t most = std::max(slack, options_.most_slack);
    const std::int64_t wanted =
        std::min(asked.value_or(slack > 0 ? slack : most_record(empty)), most);
    check_state(wanted > 0 && wanted <= most_record(empty), "the ring has ", slots_,
                " slots for a window of ", options_.columns, ", so it can record ", slack,
                " past tokens", asked ? c10::str(", not ", *asked) : std::string(),
                "; make the cache with a larger record_slack, or call activate_past_recording() "
                "before its first token");
    return wanted;
  }

  std::int64_t most_record(bool empty) const {
    const std::int64_t slack = slots_ - options_.columns;
    return empty ? std::max(slack, options_.most_slack) : slack;
  }

  void record(std::int64_t tokens) noexcept {
    slots_ = std::max(slots_, options_.columns + tokens);
  }

  // Throws ValueError for more tokens behind `seen` ones than there is room for.
  void check_takes(std::int64_t seen, std::int64_t tokens) const {
    check_value(options_.ring || seen + tokens <= slots_, "the layer holds ", seen, " of at most ",
                slots_, " tokens and cannot take ", tokens, " more");
  }

 private:
  FixedStorageOptions options_;
  std::int64_t slots_;
};

// Where positions lie in a ring, at most as many as it has slots: in one piece or two, oldest
// first.
inline c10::SmallVector<Range, 2> ring_parts(Range positions, std::int64_t slots) {
  c10::SmallVector<Range, 2> parts;
  if (positions.length() == 0) return parts;
  const std::int64_t slot = positions.first % slots;
  const std::int64_t before_end = std::min(positions.length(), slots - slot);
  parts.push_back({slot, slot + before_end});
  if (before_end < positions.length()) parts.push_back({0, positions.length() - before_end});
  return parts;
}

}  // namespace detail

}  // namespace kvcache
