// Transformers' StaticSlidingWindowLayer: a ring as large as the window; a full layer where the
// window is not smaller than max_cache_len.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/layers/static_layer.h"

namespace kvcache {

class StaticSlidingWindowLayer final : public AttentionLayer {
 public:
  // spec.window: tokens, at least 1, else ValueError. Throws ValueError for options out of range.
  StaticSlidingWindowLayer(LayerSpec spec, const StaticLayerOptions& options,
                           std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>())
      : AttentionLayer(
            spec, detail::within(Retention::sliding(spec.window), options),
            detail::fixed_storage(Retention::sliding(spec.window), options, std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new StaticSlidingWindowLayer(*this));
  }

 private:
  StaticSlidingWindowLayer(const StaticSlidingWindowLayer&) = default;
};

}  // namespace kvcache
