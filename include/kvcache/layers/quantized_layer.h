// Transformers' QuantizedLayer: older tokens packed, the last ones as they are. Full, sliding or
// chunked, as its spec says; growing, or of a fixed size.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "kvcache/codec/quantized_cache_config.h"
#include "kvcache/core/errors.h"
#include "kvcache/layers/attention_layer.h"
#include "kvcache/layers/static_layer.h"
#include "kvcache/storage/quantized_storage.h"

namespace kvcache {

struct QuantizedLayerOptions {
  QuantizedCodecs codecs;
  // Buffers of a fixed size, made with the first keys (for pinned tokens with the first of these
  // that leave the recent window), at addresses that stay. Crops into groups
  // over tokens leave some that are not full, and are refused once there are too many of them.
  // Absent: it grows.
  std::optional<StaticLayerOptions> fixed = {};
};

namespace detail {

// Throws ValueError for a layer without attention.
inline Retention retention_of(const LayerSpec& spec, const QuantizedLayerOptions& options) {
  const auto retention = Retention::of(spec);
  check_value(retention.has_value(), "layer type '", spec.type,
              "' keeps no keys and values that could be quantized");
  return options.fixed ? within(*retention, checked(*options.fixed)) : *retention;
}

inline std::unique_ptr<Storage> quantized_storage(const LayerSpec& spec,
                                                  const QuantizedLayerOptions& options,
                                                  const std::shared_ptr<Memory>& memory) {
  const QuantizedCodecs& codecs = options.codecs;
  QuantizedStorageOptions storage{.keys = codecs.keys,
                                  .values = codecs.values,
                                  .residual_length = codecs.residual_length,
                                  .pinned_tokens = codecs.pinned_tokens};
  if (options.fixed) storage.fixed = fixed_options(retention_of(spec, options), *options.fixed);
  return std::make_unique<QuantizedStorage>(storage, memory);
}

}  // namespace detail

class QuantizedLayer : public AttentionLayer {
 public:
  // Throws ValueError for a spec without attention, a window below 1, and sizes out of range.
  explicit QuantizedLayer(const LayerSpec& spec, const QuantizedLayerOptions& options,
                          const std::shared_ptr<Memory>& memory = std::make_shared<TorchMemory>())
      : AttentionLayer(spec, detail::retention_of(spec, options),
                       detail::quantized_storage(spec, options, memory)) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new QuantizedLayer(*this));
  }
  std::unique_ptr<Layer> fork() override {
    return std::unique_ptr<Layer>(new QuantizedLayer(*this, Sharing{}));
  }

 protected:
  QuantizedLayer(const QuantizedLayer&) = default;
  QuantizedLayer(QuantizedLayer& other, Sharing sharing) : AttentionLayer(other, sharing) {}

  // As `config` says of a named backend.
  static QuantizedLayerOptions options_of(std::string_view backend, QuantizedCacheConfig config,
                                          const std::optional<StaticLayerOptions>& fixed) {
    config.backend = backend;
    return {.codecs = make_codecs(config), .fixed = fixed};
  }
};

}  // namespace kvcache
