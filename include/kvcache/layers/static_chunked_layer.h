// A fixed layer of chunked attention. Transformers uses StaticSlidingWindowLayer for it; ours
// differs by its mask alone, which follows the chunks.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/layers/static_layer.h"

namespace kvcache {

class StaticChunkedLayer final : public AttentionLayer {
 public:
  // spec.window: chunk size in tokens, at least 1, else ValueError. Throws ValueError for options
  // out of range.
  StaticChunkedLayer(LayerSpec spec, const StaticLayerOptions& options,
                     std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>())
      : AttentionLayer(
            spec, detail::within(Retention::chunked(spec.window), options),
            detail::fixed_storage(Retention::chunked(spec.window), options, std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new StaticChunkedLayer(*this));
  }

 private:
  StaticChunkedLayer(const StaticChunkedLayer&) = default;
};

}  // namespace kvcache
