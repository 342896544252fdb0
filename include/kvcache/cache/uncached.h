// Runs a forward pass without a cache: attention hands the step's own keys back and holds nothing,
// states begin at zero. Its step is never committed.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/layered_cache.h"
#include "kvcache/storage/transient_storage.h"

namespace kvcache {

// One use: begin_step, run, let the step go.
inline LayeredCache uncached(const std::vector<LayerSpec>& layers) {
  LayerRegistry registry = common_layers();
  for (const std::string_view type : {kFullAttention, kSlidingAttention, kChunkedAttention}) {
    registry.add(type, [](const LayerSpec& spec, const std::shared_ptr<Memory>&) {
      return std::make_unique<AttentionLayer>(spec, Retention::of(spec).value(),
                                              std::make_unique<TransientStorage>());
    });
  }
  for (const std::string_view type : {kHybrid, kHybridSliding}) {
    registry.add(type, [](const LayerSpec& spec, const std::shared_ptr<Memory>& memory) {
      return std::make_unique<HybridLayer>(spec, Retention::of(spec).value(),
                                           std::make_unique<TransientStorage>(), memory);
    });
  }
  return LayeredCache("none",
                      LayerStack(layers, std::move(registry), std::make_shared<TorchMemory>(),
                                 std::make_unique<Resident>()));
}

}  // namespace kvcache
