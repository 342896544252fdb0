// Which class stands behind each layer type of a quantized cache.
#pragma once

#include <optional>

#include "kvcache/codec/quantized_cache_config.h"
#include "kvcache/layers/registry.h"
#include "kvcache/layers/static_layer.h"

namespace kvcache {

// The kinds that QuantizedCache makes; see QuantizedLayerOptions. Throws ValueError for a backend
// or number that there is not.
LayerRegistry quantized_layers(const QuantizedCacheConfig& config,
                               const std::optional<StaticLayerOptions>& fixed = {});

}  // namespace kvcache
