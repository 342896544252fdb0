// Transformers' DynamicSlidingWindowLayer: keeps what the next query of a sliding window may see.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/layers/attention_layer.h"
#include "kvcache/storage/growing_storage.h"

namespace kvcache {

class DynamicSlidingWindowLayer final : public AttentionLayer {
 public:
  // spec.window: tokens, at least 1, else ValueError.
  explicit DynamicSlidingWindowLayer(
      LayerSpec spec, std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>())
      : AttentionLayer(spec, Retention::sliding(spec.window),
                       std::make_unique<GrowingStorage>(std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new DynamicSlidingWindowLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new DynamicSlidingWindowLayer(*this, Sharing{}));
  }

 private:
  DynamicSlidingWindowLayer(const DynamicSlidingWindowLayer&) = default;
  DynamicSlidingWindowLayer(DynamicSlidingWindowLayer& other, Sharing sharing)
      : AttentionLayer(other, sharing) {}
};

}  // namespace kvcache
