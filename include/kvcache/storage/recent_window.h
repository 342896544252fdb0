// Which tokens of a quantized storage are pinned, packed, or stay as they are: integers only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvcache/core/visible.h"

namespace kvcache::detail {

// What a step makes leave the recent window.
struct Leaving {
  Range pin = {};           // positions to pin
  Range pack = {};          // positions to pack
  std::int64_t packed_end;  // where the recent window then begins
};

struct RecentWindow {
  std::int64_t residual_length = 0;  // tokens that stay, at least
  std::int64_t pinned_tokens = 0;    // first ones that are never packed
  std::int64_t group_tokens = 1;     // tokens are packed in multiples of so many

  // Tokens are packed so many at a time, or a multiple: whole groups, and up to a quarter of the
  // window, as packing a few costs as much as packing one.
  constexpr std::int64_t packed_together() const {
    return std::max<std::int64_t>(residual_length / 4 / group_tokens, 1) * group_tokens;
  }

  // Tokens of the window between steps, at most.
  constexpr std::int64_t most_tokens() const {
    return residual_length + std::max(packed_together(), pinned_tokens);
  }

  // Of a window that began at `packed_end`, once tokens up to `end` were seen and those from
  // `keep_from` on are kept. Whole groups leave; of what leaves at once, only those of what is kept
  // are packed.
  constexpr Leaving leaving(std::int64_t packed_end, std::int64_t end,
                            std::int64_t keep_from) const {
    std::int64_t count = std::max<std::int64_t>(end - residual_length - packed_end, 0);
    Leaving result{.packed_end = std::max(packed_end, keep_from)};
    std::int64_t first = packed_end;  // to pack
    // Under a window that has moved on the first tokens are out of reach, or soon will be.
    if (keep_from == 0 && packed_end < pinned_tokens) {
      if (count < pinned_tokens - packed_end) return result;
      result.pin = {packed_end, pinned_tokens};
      count -= result.pin.length();
      first = pinned_tokens;
    }
    const std::int64_t pack_end = first + count / packed_together() * packed_together();
    const std::int64_t wanted = std::max<std::int64_t>(pack_end - std::max(keep_from, first), 0);
    const std::int64_t packed =
        std::min((wanted + group_tokens - 1) / group_tokens * group_tokens, pack_end - first);
    result.pack = {pack_end - packed, pack_end};
    result.packed_end = std::max(pack_end, keep_from);
    return result;
  }
};

}  // namespace kvcache::detail
