// All that a cache promises, as labelled bytes: two caches with equal digests hold the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/layered_cache.h"

namespace kvcache::testing {

using Digest = std::vector<std::pair<std::string, std::string>>;

// Every integer, every live byte, lengths, batch, history, and what can_crop answers.
Digest digest_of(LayeredCache& cache);

// The first label where two digests differ, with both sides; empty if they are equal.
std::string difference(const Digest& a, const Digest& b);

}  // namespace kvcache::testing
