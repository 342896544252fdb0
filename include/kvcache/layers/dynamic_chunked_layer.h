// A growing layer of chunked attention. Transformers uses DynamicSlidingWindowLayer for it; ours
// differs by its mask alone, which follows the chunks.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/layers/attention_layer.h"
#include "kvcache/storage/growing_storage.h"

namespace kvcache {

class DynamicChunkedLayer final : public AttentionLayer {
 public:
  // spec.window: chunk size in tokens, at least 1, else ValueError.
  explicit DynamicChunkedLayer(LayerSpec spec,
                               std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>())
      : AttentionLayer(spec, Retention::chunked(spec.window),
                       std::make_unique<GrowingStorage>(std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new DynamicChunkedLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new DynamicChunkedLayer(*this, Sharing{}));
  }

 private:
  DynamicChunkedLayer(const DynamicChunkedLayer&) = default;
  DynamicChunkedLayer(DynamicChunkedLayer& other, Sharing sharing)
      : AttentionLayer(other, sharing) {}
};

}  // namespace kvcache
