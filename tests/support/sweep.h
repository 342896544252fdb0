// How much of a sweep runs: a seeded sample by default, all of it with KVCACHE_FULL_SWEEP=1.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace kvcache::testing {

inline std::int64_t sweep_count(std::int64_t sample, std::int64_t full) {
  const char* asked = std::getenv("KVCACHE_FULL_SWEEP");
  return asked != nullptr && std::string_view(asked) == "1" ? full : sample;
}

}  // namespace kvcache::testing
