// Transformers' DynamicLayer: keeps every token, grows with the text.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/layers/attention_layer.h"
#include "kvcache/storage/growing_storage.h"

namespace kvcache {

class DynamicLayer final : public AttentionLayer {
 public:
  explicit DynamicLayer(LayerSpec spec = {},
                        std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>())
      : AttentionLayer(std::move(spec), Retention::full(),
                       std::make_unique<GrowingStorage>(std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new DynamicLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new DynamicLayer(*this, Sharing{}));
  }

 private:
  DynamicLayer(const DynamicLayer&) = default;
  DynamicLayer(DynamicLayer& other, Sharing sharing) : AttentionLayer(other, sharing) {}
};

}  // namespace kvcache
