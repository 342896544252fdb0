// What a cache must keep so that drafts can be taken back.
#pragma once

#include <cstdint>

#include "kvcache/cache/cache.h"

namespace kvcache::detail {

// Makes a cache record what it takes to take `tokens` tokens back, at least 1, and no layer less
// than it did; that stays on. Returns how many can be taken back from now on: `tokens`, or where
// layers of a fixed size have no room to record so many, or record different numbers of them, as
// many as they did record, maybe 0.
std::int64_t record_drafts(Cache& cache, std::int64_t tokens);

}  // namespace kvcache::detail
