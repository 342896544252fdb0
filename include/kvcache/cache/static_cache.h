// Transformers' StaticCache: room for a fixed number of tokens, made once. The buffers' addresses
// stay for life: through steps, crop, reorder_cache, reset, and batch_select_indices with as many
// rows as before. Attention reads what is filled, not max_cache_len.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/definitions.h"
#include "kvcache/layers/registry.h"

namespace kvcache {

struct StaticCacheOptions {
  std::int64_t max_cache_len = 0;  // tokens, at least 1
  // Tokens that sliding and chunked layers can take back beyond their window, once
  // activate_past_recording() was called. 0: it must be called before the first token, and then
  // makes room for max_cache_len of them.
  std::int64_t record_slack = 0;
  std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>();
  std::optional<LayerRegistry> layers = {};  // absent: static_layers() of the numbers above
};

// Shapes of the buffers to make ahead; lists hold one number a layer, or one for all of them.
struct EarlyInitialization {
  std::int64_t batch = 1;
  std::vector<std::int64_t> kv_heads = {};    // empty: as the layers' specs say
  std::vector<std::int64_t> key_dims = {};    // head sizes of the keys, likewise
  std::vector<std::int64_t> value_dims = {};  // empty: as key_dims
  at::ScalarType dtype = at::kFloat;
  std::vector<at::Device> devices = {at::kCPU};  // where layers lie, one for all or one for each
};

class StaticCache final : public LayeredCache {
 public:
  // Throws ValueError for options out of range, or without layers. A sliding or chunked layer whose
  // window is not smaller than max_cache_len is a full one. Where all layers have smaller windows,
  // there is no bound on the text's length.
  StaticCache(const std::vector<LayerSpec>& layers, StaticCacheOptions options)
      : LayeredCache(kKind, make_stack(layers, std::move(options))) {}

  // The layers of a model: StaticCache(model.config(), {.max_cache_len = 512}).
  StaticCache(const HasLayerSpecs auto& config, StaticCacheOptions options)
      : StaticCache(std::vector<LayerSpec>(config.layer_specs()), std::move(options)) {}

  // Makes the buffers now instead of with the first keys, and fixes their shape for good: steps,
  // row operations, files and marks of another one are refused, also after a reset. Copies (clone,
  // fork, batch_split, concatenate) take other shapes after a reset. Throws RuntimeError if tokens
  // are held, ValueError for lists of another length than there are layers, and for sizes below 1;
  // nothing has changed then.
  void early_initialization(const EarlyInitialization& shapes);

 private:
  explicit StaticCache(LayerStack layers) : LayeredCache(kKind, std::move(layers)) {}

  std::unique_ptr<LayeredCache> with_layers(LayerStack layers) const override;

  static LayerStack make_stack(const std::vector<LayerSpec>& layers, StaticCacheOptions options);

  static constexpr std::string_view kKind = "static";
  static constexpr std::int64_t kMostOfASize = std::int64_t{1} << 20;
};

#if KVCACHE_CORE_DEFINITIONS

KVCACHE_INLINE std::unique_ptr<LayeredCache> StaticCache::with_layers(LayerStack layers) const {
  return std::unique_ptr<LayeredCache>(new StaticCache(std::move(layers)));
}

KVCACHE_INLINE LayerStack StaticCache::make_stack(const std::vector<LayerSpec>& layers,
                                                  StaticCacheOptions options) {
  check_value(!layers.empty(),
              "a static cache is made of a model's layers: StaticCache(model.config(), ...)");
  const StaticLayerOptions sizes = detail::checked(
      {.max_cache_len = options.max_cache_len, .record_slack = options.record_slack});
  LayerRegistry registry = options.layers ? std::move(*options.layers) : static_layers(sizes);
  return {layers, std::move(registry), std::move(options.memory), std::make_unique<Resident>()};
}

KVCACHE_INLINE void StaticCache::early_initialization(const EarlyInitialization& shapes) {
  const auto layers = static_cast<std::size_t>(layer_count());
  const auto number = [&](const std::vector<std::int64_t>& list, std::size_t layer,
                          const char* name, std::int64_t otherwise) {
    check_value(list.size() <= 1 || list.size() == layers, name, " has ", list.size(),
                " entries; it takes one, or one for each of the ", layers, " layers");
    const std::int64_t value = list.empty() ? otherwise : list[list.size() == 1 ? 0 : layer];
    check_value(value >= 1 && value <= kMostOfASize, name, " of layer ", layer, " is ", value,
                "; it must be from 1 to ", kMostOfASize);
    return value;
  };
  check_value(shapes.devices.size() == 1 || shapes.devices.size() == layers, "there are ",
              shapes.devices.size(), " devices for ", layers,
              " layers; give one, or one for each layer");
  std::vector<KeyValueShape> each;
  for (std::size_t i = 0; i < layers; ++i) {
    const LayerSpec& spec = layer(static_cast<std::int64_t>(i)).spec();
    const std::int64_t key_dim = number(shapes.key_dims, i, "key_dims", spec.key_dim);
    const std::int64_t value_dim = shapes.value_dims.empty() && spec.value_dim == 0
                                       ? key_dim
                                       : number(shapes.value_dims, i, "value_dims", spec.value_dim);
    each.push_back({.batch = number({shapes.batch}, i, "batch", 0),
                    .kv_heads = number(shapes.kv_heads, i, "kv_heads", spec.kv_heads),
                    .key_dim = key_dim,
                    .value_dim = value_dim,
                    .dtype = shapes.dtype,
                    .device = shapes.devices[shapes.devices.size() == 1 ? 0 : i]});
  }
  make_buffers(each);
}

#endif

}  // namespace kvcache
