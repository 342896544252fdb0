// Runs a forward pass without a cache: layers that hand the step's own keys back and hold nothing.
// Its step is never committed.
#pragma once

#include <memory>
#include <vector>

#include "kvcache/cache/layered_cache.h"
#include "kvcache/storage/transient_storage.h"

namespace kvcache {

// One use: begin_step, run, let the step go.
inline LayeredCache uncached(const std::vector<LayerSpec>& layers) {
  LayerRegistry registry;
  const auto add = [&](std::string_view type, auto retention) {
    registry.add(type, [retention](const LayerSpec& spec, const std::shared_ptr<Memory>&) {
      return std::make_unique<AttentionLayer>(spec, retention(spec.window),
                                              std::make_unique<TransientStorage>());
    });
  };
  add(kFullAttention, [](std::int64_t) { return Retention::full(); });
  add(kSlidingAttention, &Retention::sliding);
  add(kChunkedAttention, &Retention::chunked);
  return LayeredCache("none",
                      LayerStack(layers, std::move(registry), std::make_shared<TorchMemory>(),
                                 std::make_unique<Resident>()));
}

}  // namespace kvcache
