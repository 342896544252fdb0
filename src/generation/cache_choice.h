// The cache that a config asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "generation/prompt.h"
#include "kvcache/cache/cache.h"
#include "kvcache/generation/detail/kept_caches.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/models/language_model.h"

namespace kvcache::detail {

// "dynamic", "static", "offloaded", "offloaded_static" or "quantized": what cache_implementation
// says, also where it is one of the names that old checkpoints have; empty for any other one.
std::string_view cache_kind(const GenerationConfig& config);

// What the cache of a call is to have room for, whose text is at most `longest` tokens.
CacheRoom room_for(const GenerationConfig& config, const Prompt& prompt, std::int64_t longest);

// An empty cache, which has allocated nothing yet.
std::unique_ptr<Cache> new_cache(const GenerationConfig& config, const ModelConfig& model,
                                 const CacheRoom& room);

// An empty cache. Of fixed size: one of `kept` where that will do.
std::shared_ptr<Cache> make_cache(const GenerationConfig& config, const ModelConfig& model,
                                  const CacheRoom& room, KeptCaches& kept);

}  // namespace kvcache::detail
