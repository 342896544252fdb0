// Transformers' QuantizedCache: the older tokens in few bits. How, and what it costs in exactness:
// docs/quantization.md.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/layers/quantized_layers.h"

namespace kvcache {

struct QuantizedCacheOptions {
  QuantizedCacheConfig config = {};
  std::optional<StaticLayerOptions> fixed = {};  // absent: it grows; see QuantizedLayerOptions
  std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>();
  std::optional<LayerRegistry> layers = {};  // absent: quantized_layers() of config and fixed
};

class QuantizedCache final : public LayeredCache {
 public:
  // Without layers: full ones are made as keys come in, as many as the model has. Throws ValueError
  // for a backend or number that there is not, sizes out of range, and without layers for a config
  // that leaves some of them dense.
  explicit QuantizedCache(const std::vector<LayerSpec>& layers = {},
                          QuantizedCacheOptions options = {});

  // The layers of a model: QuantizedCache(model.config(), {.config = {.nbits = 4}}).
  explicit QuantizedCache(const HasLayerSpecs auto& config, QuantizedCacheOptions options = {})
      : QuantizedCache(std::vector<LayerSpec>(config.layer_specs()), std::move(options)) {}

 private:
  explicit QuantizedCache(LayerStack layers) : LayeredCache(kKind, std::move(layers)) {}

  std::unique_ptr<LayeredCache> with_layers(LayerStack layers) const override;

  static constexpr std::string_view kKind = "quantized";
};

}  // namespace kvcache
