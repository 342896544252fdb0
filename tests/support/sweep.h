// How much of a sweep runs: a seeded sample by default, all of it with KVCACHE_FULL_SWEEP=1, a
// third of the sample with KVCACHE_FULL_SWEEP=small.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace kvcache::testing {

inline std::int64_t sweep_count(std::int64_t sample, std::int64_t full) {
  const char* asked = std::getenv("KVCACHE_FULL_SWEEP");
  const std::string_view amount = asked != nullptr ? asked : "";
  if (amount == "small") return std::max<std::int64_t>(sample / 3, 1);
  return amount == "1" ? full : sample;
}

}  // namespace kvcache::testing
