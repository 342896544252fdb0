// Transformers' Fp8QuantizedLayer: a layer in 8-bit floating point.
#pragma once

#include <memory>
#include <optional>

#include "kvcache/layers/quantized_layer.h"

namespace kvcache {

class Fp8QuantizedLayer final : public QuantizedLayer {
 public:
  // The backend is fp8, which takes no numbers of groups: ValueError for a config that has some.
  explicit Fp8QuantizedLayer(
      const LayerSpec& spec = {}, const QuantizedCacheConfig& config = {},
      const std::optional<StaticLayerOptions>& fixed = {},
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : QuantizedLayer(spec, options_of("fp8", config, fixed), memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new Fp8QuantizedLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new Fp8QuantizedLayer(*this, Sharing{}));
  }

 private:
  Fp8QuantizedLayer(const Fp8QuantizedLayer&) = default;
  Fp8QuantizedLayer(Fp8QuantizedLayer& other, Sharing sharing) : QuantizedLayer(other, sharing) {}
};

}  // namespace kvcache
