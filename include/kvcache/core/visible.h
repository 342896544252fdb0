// Positions and lengths as plain integers: which tokens a storage holds and which ones the queries
// of a step are handed. Knows no tensor.
#pragma once

#include <cstdint>
#include <optional>

namespace kvcache {

// Token positions, half open: [first, end).
struct Range {
  std::int64_t first = 0;
  std::int64_t end = 0;

  constexpr std::int64_t length() const { return end - first; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

// The keys that a step's queries are handed, and the pattern that says which query sees which of
// them. Two layers whose Visible is equal share one mask.
struct Visible {
  std::int64_t length = 0;                  // key columns, the step's own tokens included
  std::int64_t offset = 0;                  // position of the first column
  std::optional<std::int64_t> window = {};  // a query at p sees p - window + 1 .. p
  std::optional<std::int64_t> chunk = {};   // a query at p sees floor(p / chunk) * chunk .. p

  friend constexpr bool operator==(const Visible&, const Visible&) = default;
};

}  // namespace kvcache
