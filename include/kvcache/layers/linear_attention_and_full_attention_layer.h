// Transformers' LinearAttentionAndFullAttentionLayer: all keys, and states.
#pragma once

#include <memory>

#include "kvcache/layers/hybrid_layer.h"
#include "kvcache/storage/growing_storage.h"

namespace kvcache {

class LinearAttentionAndFullAttentionLayer final : public HybridLayer {
 public:
  explicit LinearAttentionAndFullAttentionLayer(
      const LayerSpec& spec,
      const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : HybridLayer(spec, Retention::full(), std::make_unique<GrowingStorage>(memory), memory) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new LinearAttentionAndFullAttentionLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new LinearAttentionAndFullAttentionLayer(*this, Sharing{}));
  }

 private:
  LinearAttentionAndFullAttentionLayer(const LinearAttentionAndFullAttentionLayer&) = default;
  LinearAttentionAndFullAttentionLayer(LinearAttentionAndFullAttentionLayer& other, Sharing sharing)
      : HybridLayer(other, sharing) {}
};

}  // namespace kvcache
