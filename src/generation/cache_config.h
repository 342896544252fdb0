// What cache_config says.
#pragma once

#include "kvcache/codec/quantized_cache_config.h"
#include "kvcache/generation/generation_config.h"

namespace kvcache::detail {

// The settings of a quantized cache. Throws ValueError for what is no JSON object of them; values
// out of range are for make_codecs().
QuantizedCacheConfig quantized_config(const GenerationConfig& config);

// Whether there are no settings. Throws ValueError for what is no JSON object.
bool has_no_cache_config(const GenerationConfig& config);

}  // namespace kvcache::detail
