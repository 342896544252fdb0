// All that a cache promises, as labelled bytes: two caches with equal digests hold the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/encoder_decoder_cache.h"

namespace kvcache::testing {

using Digest = std::vector<std::pair<std::string, std::string>>;

// The layers of a cache; of a pair of caches, the decoder's.
LayeredCache& layers_of(Cache& cache);

// The encoder's layers; null where the cache is no pair.
LayeredCache* encoder_layers_of(Cache& cache);

// Every integer, every live byte, lengths, batch, history with its stamps, and what can_crop
// answers; of both caches of a pair.
Digest digest_of(Cache& cache);

// The first label where two digests differ, with both sides; empty if they are equal.
std::string difference(const Digest& a, const Digest& b);

}  // namespace kvcache::testing
