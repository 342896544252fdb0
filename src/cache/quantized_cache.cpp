#include "kvcache/cache/quantized_cache.h"

#include <initializer_list>

#include "kvcache/core/errors.h"
#include "kvcache/layers/fp8_quantized_layer.h"
#include "kvcache/layers/hqq_quantized_layer.h"
#include "kvcache/layers/linear_attention_and_quantized_attention_layer.h"
#include "kvcache/layers/quanto_quantized_layer.h"

namespace kvcache {
namespace {

// Adds `L`, constructible from a spec, options and a memory.
template <typename L>
void add_options(LayerRegistry& registry, std::initializer_list<std::string_view> types,
                 const QuantizedLayerOptions& options) {
  for (const std::string_view type : types) {
    registry.add(type, [options](const LayerSpec& spec, const std::shared_ptr<Memory>& memory) {
      return std::make_unique<L>(spec, options, memory);
    });
  }
}

// Adds `L`, constructible from a spec, a config, sizes and a memory, under the types that have
// keys.
template <typename L>
void add_attention(LayerRegistry& registry, const QuantizedCacheConfig& config,
                   const std::optional<StaticLayerOptions>& fixed) {
  for (const std::string_view type : {kFullAttention, kSlidingAttention, kChunkedAttention}) {
    registry.add(type,
                 [config, fixed](const LayerSpec& spec, const std::shared_ptr<Memory>& memory) {
                   return std::make_unique<L>(spec, config, fixed, memory);
                 });
  }
}

// Lets the first and last layers with keys of their own stay dense, as many as the config says.
void add_dense_layers(LayerRegistry& registry, const std::vector<LayerSpec>& layers,
                      const QuantizedCacheOptions& options) {
  const QuantizedCacheConfig& config = options.config;
  if (config.first_dense_layers == 0 && config.last_dense_layers == 0) return;
  check_value(!layers.empty(),
              "first_dense_layers and last_dense_layers need a model's layers: make the cache from "
              "its config, QuantizedCache(model.config(), ...)");
  std::vector<std::int64_t> with_keys;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (Retention::of(layers[i])) with_keys.push_back(static_cast<std::int64_t>(i));
  }
  const auto count = static_cast<std::int64_t>(with_keys.size());
  const LayerRegistry dense = options.fixed ? static_layers(*options.fixed) : dynamic_layers();
  for (std::int64_t i = 0; i < count; ++i) {
    if (i >= config.first_dense_layers && count - i > config.last_dense_layers) continue;
    registry.add_for(with_keys[static_cast<std::size_t>(i)], dense);
  }
}

LayerStack make_stack(const std::vector<LayerSpec>& layers, QuantizedCacheOptions options) {
  LayerRegistry registry =
      options.layers ? *options.layers : quantized_layers(options.config, options.fixed);
  add_dense_layers(registry, layers, options);
  return {layers, std::move(registry), std::move(options.memory), std::make_unique<Resident>()};
}

}  // namespace

LayerRegistry quantized_layers(const QuantizedCacheConfig& config,
                               const std::optional<StaticLayerOptions>& fixed) {
  const QuantizedLayerOptions options{.codecs = make_codecs(config), .fixed = fixed};
  if (fixed) detail::checked(*fixed);
  LayerRegistry registry = common_layers();
  if (config.backend == "fp8") {
    add_attention<Fp8QuantizedLayer>(registry, config, fixed);
  } else if (config.backend == "hqq") {
    add_attention<HQQQuantizedLayer>(registry, config, fixed);
  } else if (config.backend == "quanto") {
    add_attention<QuantoQuantizedLayer>(registry, config, fixed);
  } else {
    add_options<QuantizedLayer>(registry, {kFullAttention, kSlidingAttention, kChunkedAttention},
                                options);
  }
  add_options<LinearAttentionAndQuantizedAttentionLayer>(registry, {kHybrid, kHybridSliding},
                                                         options);
  return registry;
}

QuantizedCache::QuantizedCache(const std::vector<LayerSpec>& layers, QuantizedCacheOptions options)
    : LayeredCache(kKind, make_stack(layers, std::move(options))) {}

std::unique_ptr<LayeredCache> QuantizedCache::with_layers(LayerStack layers) const {
  return std::unique_ptr<LayeredCache>(new QuantizedCache(std::move(layers)));
}

}  // namespace kvcache
