// Transformers' HQQQuantizedLayer: a layer quantized as hqq does it.
#pragma once

#include <memory>
#include <optional>

#include "kvcache/layers/quantized_layer.h"

namespace kvcache {

class HQQQuantizedLayer final : public QuantizedLayer {
 public:
  // The backend is hqq whatever the config says. Throws ValueError for numbers it does not take.
  explicit HQQQuantizedLayer(
      const LayerSpec& spec = {}, const QuantizedCacheConfig& config = {},
      const std::optional<StaticLayerOptions>& fixed = {},
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : QuantizedLayer(spec, options_of("hqq", config, fixed), memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new HQQQuantizedLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new HQQQuantizedLayer(*this, Sharing{}));
  }

 private:
  HQQQuantizedLayer(const HQQQuantizedLayer&) = default;
  HQQQuantizedLayer(HQQQuantizedLayer& other, Sharing sharing) : QuantizedLayer(other, sharing) {}
};

}  // namespace kvcache
