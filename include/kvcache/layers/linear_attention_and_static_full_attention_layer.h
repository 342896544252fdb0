// Transformers' LinearAttentionAndStaticFullAttentionLayer: room for a fixed number of tokens, and
// states.
#pragma once

#include <memory>

#include "kvcache/layers/hybrid_layer.h"
#include "kvcache/layers/static_layer.h"

namespace kvcache {

class LinearAttentionAndStaticFullAttentionLayer final : public HybridLayer {
 public:
  // Throws ValueError for options out of range.
  LinearAttentionAndStaticFullAttentionLayer(
      const LayerSpec& spec, const StaticLayerOptions& options,
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : HybridLayer(spec, Retention::full(),
                    detail::fixed_storage(Retention::full(), options, memory), memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new LinearAttentionAndStaticFullAttentionLayer(*this));
  }

 private:
  LinearAttentionAndStaticFullAttentionLayer(const LinearAttentionAndStaticFullAttentionLayer&) =
      default;
};

}  // namespace kvcache
