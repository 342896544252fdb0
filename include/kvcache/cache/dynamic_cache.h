// Transformers' DynamicCache: grows with the text; the default of generate().
#pragma once

#include <concepts>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/definitions.h"

namespace kvcache {

// A model's config: it says what its layers are.
template <typename Config>
concept HasLayerSpecs = requires(const Config& config) {
  { config.layer_specs() } -> std::convertible_to<std::vector<LayerSpec>>;
};

struct DynamicCacheOptions {
  std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>();
  LayerRegistry layers = dynamic_layers();  // add kinds of your own
};

class DynamicCache final : public LayeredCache {
 public:
  // Without layers: full ones are made as keys come in, as many as the model has.
  explicit DynamicCache(const std::vector<LayerSpec>& layers = {}, DynamicCacheOptions options = {})
      : LayeredCache(kKind, LayerStack(layers, std::move(options.layers), std::move(options.memory),
                                       std::make_unique<Resident>())) {}

  // The layers of a model: DynamicCache(model.config()).
  explicit DynamicCache(const HasLayerSpecs auto& config, DynamicCacheOptions options = {})
      : DynamicCache(std::vector<LayerSpec>(config.layer_specs()), std::move(options)) {}

 private:
  explicit DynamicCache(LayerStack layers) : LayeredCache(kKind, std::move(layers)) {}

  std::unique_ptr<LayeredCache> with_layers(LayerStack layers) const override;

  static constexpr std::string_view kKind = "dynamic";
};

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE std::unique_ptr<LayeredCache> DynamicCache::with_layers(LayerStack layers) const {
  return std::unique_ptr<LayeredCache>(new DynamicCache(std::move(layers)));
}

#endif

}  // namespace kvcache
