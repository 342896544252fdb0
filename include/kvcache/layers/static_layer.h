// Transformers' StaticLayer: room for a fixed number of tokens, at addresses that stay.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kvcache/layers/attention_layer.h"
#include "kvcache/storage/fixed_storage.h"

namespace kvcache {

struct StaticLayerOptions {
  std::int64_t max_cache_len = 0;  // tokens, at least 1
  // Tokens that a sliding or chunked layer can take back beyond its window once it records past
  // states; 0: as many as max_cache_len, if recording begins before the first token.
  std::int64_t record_slack = 0;
};

namespace detail {

inline const StaticLayerOptions& checked(const StaticLayerOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  check_value(options.max_cache_len >= 1 && options.max_cache_len <= kMost, "max_cache_len is ",
              options.max_cache_len, "; it must be a number of tokens from 1 to ", kMost);
  check_value(options.record_slack >= 0 && options.record_slack <= kMost, "record_slack is ",
              options.record_slack, "; it must be a number of tokens from 0 to ", kMost);
  return options;
}

// A window that no token leaves before the layer is full is none.
inline Retention within(const Retention& retention, const StaticLayerOptions& options) {
  const bool moves = retention.bound().value_or(options.max_cache_len) < options.max_cache_len;
  return moves ? retention : Retention::full();
}

// What within() a layer is to have room for.
inline FixedStorageOptions fixed_options(const Retention& within,
                                         const StaticLayerOptions& options) {
  const auto window = within.bound();
  if (!window) return {.columns = options.max_cache_len};
  return {.columns = *window,
          .ring = true,
          .slack = options.record_slack,
          .most_slack = options.max_cache_len - *window + 1};
}

inline std::unique_ptr<Storage> fixed_storage(const Retention& retention,
                                              const StaticLayerOptions& options,
                                              std::shared_ptr<Memory> memory) {
  return std::make_unique<FixedStorage>(fixed_options(within(retention, checked(options)), options),
                                        std::move(memory));
}

}  // namespace detail

class StaticLayer final : public AttentionLayer {
 public:
  // Throws ValueError for options out of range.
  StaticLayer(LayerSpec spec, const StaticLayerOptions& options,
              std::shared_ptr<Memory> memory = std::make_shared<TorchMemory>())
      : AttentionLayer(std::move(spec), Retention::full(),
                       detail::fixed_storage(Retention::full(), options, std::move(memory))) {}

  std::unique_ptr<Layer> clone() const override {
    return std::unique_ptr<Layer>(new StaticLayer(*this));
  }

 private:
  StaticLayer(const StaticLayer&) = default;
};

}  // namespace kvcache
