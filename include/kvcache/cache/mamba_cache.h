// A cache for models without attention: layers of convolution and recurrent states, whose size does
// not depend on the text's length.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/definitions.h"

namespace kvcache {

struct MambaCacheOptions {
  std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>();
  LayerRegistry layers = linear_layers();  // add kinds of your own
};

class MambaCache final : public LayeredCache {
 public:
  // Throws ValueError for no layer, or one of attention: that is for DynamicCache or StaticCache.
  explicit MambaCache(const std::vector<LayerSpec>& layers, MambaCacheOptions options = {})
      : LayeredCache(kKind, make_stack(layers, std::move(options))) {}

  // The layers of a model: MambaCache(model.config()).
  explicit MambaCache(const HasLayerSpecs auto& config, MambaCacheOptions options = {})
      : MambaCache(std::vector<LayerSpec>(config.layer_specs()), std::move(options)) {}

 private:
  explicit MambaCache(LayerStack layers) : LayeredCache(kKind, std::move(layers)) {}

  std::unique_ptr<LayeredCache> with_layers(LayerStack layers) const override;

  static LayerStack make_stack(const std::vector<LayerSpec>& layers, MambaCacheOptions options);

  static constexpr std::string_view kKind = "mamba";
};

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE std::unique_ptr<LayeredCache> MambaCache::with_layers(LayerStack layers) const {
  return std::unique_ptr<LayeredCache>(new MambaCache(std::move(layers)));
}

KVCACHE_INLINE LayerStack MambaCache::make_stack(const std::vector<LayerSpec>& layers,
                                                 MambaCacheOptions options) {
  check_value(!layers.empty(), "a Mamba cache is made of a model's layers: MambaCache(",
              "model.config())");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string& type = layers[i].type;
    check_value(options.layers.has(type) || !dynamic_layers().has(type), "layer ", i, " is '", type,
                "', but a Mamba cache keeps no keys and values; make a DynamicCache or StaticCache "
                "for a model with attention");
  }
  return {layers, std::move(options.layers), std::move(options.memory),
          std::make_unique<Resident>()};
}

#endif

}  // namespace kvcache
