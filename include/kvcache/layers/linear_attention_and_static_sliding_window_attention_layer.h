// Transformers' LinearAttentionAndStaticSlidingWindowAttentionLayer: a ring as large as the window,
// as StaticSlidingWindowLayer has, and states.
#pragma once

#include <memory>

#include "kvcache/layers/hybrid_layer.h"
#include "kvcache/layers/static_layer.h"

namespace kvcache {

class LinearAttentionAndStaticSlidingWindowAttentionLayer final : public HybridLayer {
 public:
  // spec.window: tokens, at least 1, else ValueError. Throws ValueError for options out of range.
  LinearAttentionAndStaticSlidingWindowAttentionLayer(
      const LayerSpec& spec, const StaticLayerOptions& options,
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : HybridLayer(spec, detail::within(Retention::sliding(spec.window), options),
                    detail::fixed_storage(Retention::sliding(spec.window), options, memory),
                    memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new LinearAttentionAndStaticSlidingWindowAttentionLayer(*this));
  }

 private:
  LinearAttentionAndStaticSlidingWindowAttentionLayer(
      const LinearAttentionAndStaticSlidingWindowAttentionLayer&) = default;
};

}  // namespace kvcache
