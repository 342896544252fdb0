// A layer of quantized keys and values, full or sliding as its spec says, and states. Transformers
// has none.
#pragma once

#include <memory>

#include "kvcache/layers/hybrid_layer.h"
#include "kvcache/layers/quantized_layer.h"

namespace kvcache {

class LinearAttentionAndQuantizedAttentionLayer final : public HybridLayer {
 public:
  // Throws ValueError for a spec without attention, a window below 1, and sizes out of range.
  LinearAttentionAndQuantizedAttentionLayer(
      const LayerSpec& spec, const QuantizedLayerOptions& options,
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : HybridLayer(spec, detail::retention_of(spec, options),
                    detail::quantized_storage(spec, options, memory), memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new LinearAttentionAndQuantizedAttentionLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new LinearAttentionAndQuantizedAttentionLayer(*this, Sharing{}));
  }

 private:
  LinearAttentionAndQuantizedAttentionLayer(const LinearAttentionAndQuantizedAttentionLayer&) =
      default;
  LinearAttentionAndQuantizedAttentionLayer(LinearAttentionAndQuantizedAttentionLayer& other,
                                            Sharing sharing)
      : HybridLayer(other, sharing) {}
};

}  // namespace kvcache
