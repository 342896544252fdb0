// Transformers' QuantoQuantizedLayer: a layer quantized as optimum-quanto does it.
#pragma once

#include <memory>
#include <optional>

#include "kvcache/layers/quantized_layer.h"

namespace kvcache {

class QuantoQuantizedLayer final : public QuantizedLayer {
 public:
  // The backend is quanto whatever the config says. Throws ValueError for numbers it does not take.
  explicit QuantoQuantizedLayer(
      const LayerSpec& spec = {}, const QuantizedCacheConfig& config = {},
      const std::optional<StaticLayerOptions>& fixed = {},
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : QuantizedLayer(spec, options_of("quanto", config, fixed), memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new QuantoQuantizedLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new QuantoQuantizedLayer(*this, Sharing{}));
  }

 private:
  QuantoQuantizedLayer(const QuantoQuantizedLayer&) = default;
  QuantoQuantizedLayer(QuantoQuantizedLayer& other, Sharing sharing)
      : QuantizedLayer(other, sharing) {}
};

}  // namespace kvcache
