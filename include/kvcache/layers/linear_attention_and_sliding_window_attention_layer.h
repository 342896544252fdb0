// Transformers' LinearAttentionAndSlidingWindowAttentionLayer: what the next query of a window may
// see, and states.
#pragma once

#include <memory>

#include "kvcache/layers/hybrid_layer.h"
#include "kvcache/storage/growing_storage.h"

namespace kvcache {

class LinearAttentionAndSlidingWindowAttentionLayer final : public HybridLayer {
 public:
  // spec.window: tokens, at least 1, else ValueError.
  explicit LinearAttentionAndSlidingWindowAttentionLayer(
      const LayerSpec& spec,
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : HybridLayer(spec, Retention::sliding(spec.window), std::make_unique<GrowingStorage>(memory),
                    memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new LinearAttentionAndSlidingWindowAttentionLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(
        new LinearAttentionAndSlidingWindowAttentionLayer(*this, Sharing{}));
  }

 private:
  LinearAttentionAndSlidingWindowAttentionLayer(
      const LinearAttentionAndSlidingWindowAttentionLayer&) = default;
  LinearAttentionAndSlidingWindowAttentionLayer(
      LinearAttentionAndSlidingWindowAttentionLayer& other, Sharing sharing)
      : HybridLayer(other, sharing) {}
};

}  // namespace kvcache
