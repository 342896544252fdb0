// Which class stands behind each layer type: a value that is filled by explicit functions and
// passed in, so that users can add kinds of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kvcache/core/definitions.h"
#include "kvcache/core/errors.h"
#include "kvcache/layers/dummy_layer.h"
#include "kvcache/layers/dynamic_chunked_layer.h"
#include "kvcache/layers/dynamic_layer.h"
#include "kvcache/layers/dynamic_sliding_window_layer.h"
#include "kvcache/layers/linear_attention_and_full_attention_layer.h"
#include "kvcache/layers/linear_attention_and_sliding_window_attention_layer.h"
#include "kvcache/layers/linear_attention_and_static_full_attention_layer.h"
#include "kvcache/layers/linear_attention_and_static_sliding_window_attention_layer.h"
#include "kvcache/layers/linear_attention_layer.h"
#include "kvcache/layers/shared_layer.h"
#include "kvcache/layers/static_chunked_layer.h"
#include "kvcache/layers/static_layer.h"
#include "kvcache/layers/static_sliding_window_layer.h"

namespace kvcache {

class LayerRegistry {
 public:
  using Factory =
      std::function<std::unique_ptr<Layer>(const LayerSpec&, const std::shared_ptr<Memory>&)>;

  // Adds a layer type, or replaces the one of that name. Throws ValueError for an empty function.
  LayerRegistry& add(std::string_view type, Factory factory) {
    check_value(factory != nullptr, "the factory of layer type '", type, "' is an empty function");
    factories_.insert_or_assign(std::string(type), std::move(factory));
    return *this;
  }

  // Layer number `layer` of a cache, whatever its type, comes from `layers` instead.
  LayerRegistry& add_for(std::int64_t layer, LayerRegistry layers) {
    of_layers_.insert_or_assign(layer, std::make_shared<const LayerRegistry>(std::move(layers)));
    return *this;
  }

  bool has(std::string_view type) const { return factories_.contains(std::string(type)); }

  // Of a cache's layer number `layer`; absent: of none. Throws ValueError, listing the known types,
  // if spec.type is not among them, and for a factory that makes nothing.
  std::unique_ptr<Layer> make(const LayerSpec& spec, const std::shared_ptr<Memory>& memory,
                              std::optional<std::int64_t> layer = {}) const {
    const auto own = layer ? of_layers_.find(*layer) : of_layers_.end();
    if (own != of_layers_.end()) return own->second->make(spec, memory);
    const auto found = factories_.find(spec.type);
    if (found == factories_.end()) {
      std::string known;
      for (const auto& [type, factory] : factories_) known += (known.empty() ? "" : ", ") + type;
      throw ValueError(c10::str("unknown layer type '", spec.type, "'; this cache knows: ", known));
    }
    std::unique_ptr<Layer> made = found->second(spec, memory);
    check_value(made != nullptr, "the factory of layer type '", spec.type, "' returned null");
    return made;
  }

 private:
  std::map<std::string, Factory> factories_;
  std::map<std::int64_t, std::shared_ptr<const LayerRegistry>> of_layers_;  // by number
};

// Adds `L`, constructible from a spec and a memory, under a type name.
template <typename L>
LayerRegistry& add_layer(LayerRegistry& registry, std::string_view type) {
  return registry.add(type, [](const LayerSpec& spec, const std::shared_ptr<Memory>& memory) {
    return std::make_unique<L>(spec, memory);
  });
}

// The kinds without keys and values, which MambaCache makes.
LayerRegistry linear_layers();

// The kinds that are the same in every cache with attention.
LayerRegistry common_layers();

// The kinds that DynamicCache makes.
LayerRegistry dynamic_layers();

// Adds `L`, constructible from a spec, options and a memory, under a type name.
template <typename L>
LayerRegistry& add_layer(LayerRegistry& registry, std::string_view type,
                         const StaticLayerOptions& options) {
  return registry.add(type,
                      [options](const LayerSpec& spec, const std::shared_ptr<Memory>& memory) {
                        return std::make_unique<L>(spec, options, memory);
                      });
}

// The kinds that StaticCache makes.
LayerRegistry static_layers(const StaticLayerOptions& options);

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE LayerRegistry linear_layers() {
  LayerRegistry registry;
  add_layer<LinearAttentionLayer>(registry, kLinearAttention);
  add_layer<LinearAttentionLayer>(registry, kConvolution);
  add_layer<DummyLayer>(registry, kDummy);
  return registry;
}

KVCACHE_INLINE LayerRegistry common_layers() {
  LayerRegistry registry = linear_layers();
  add_layer<SharedLayer>(registry, kShared);
  return registry;
}

KVCACHE_INLINE LayerRegistry dynamic_layers() {
  LayerRegistry registry = common_layers();
  add_layer<DynamicLayer>(registry, kFullAttention);
  add_layer<DynamicSlidingWindowLayer>(registry, kSlidingAttention);
  add_layer<DynamicChunkedLayer>(registry, kChunkedAttention);
  add_layer<LinearAttentionAndFullAttentionLayer>(registry, kHybrid);
  add_layer<LinearAttentionAndSlidingWindowAttentionLayer>(registry, kHybridSliding);
  return registry;
}

KVCACHE_INLINE LayerRegistry static_layers(const StaticLayerOptions& options) {
  LayerRegistry registry = common_layers();
  add_layer<StaticLayer>(registry, kFullAttention, options);
  add_layer<StaticSlidingWindowLayer>(registry, kSlidingAttention, options);
  add_layer<StaticChunkedLayer>(registry, kChunkedAttention, options);
  add_layer<LinearAttentionAndStaticFullAttentionLayer>(registry, kHybrid, options);
  add_layer<LinearAttentionAndStaticSlidingWindowAttentionLayer>(registry, kHybridSliding, options);
  return registry;
}

#endif

}  // namespace kvcache
