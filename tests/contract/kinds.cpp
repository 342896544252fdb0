#include "tests/contract/kinds.h"

#include <c10/core/ScalarType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/quantized_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/layers/linear_attention_and_quantized_attention_layer.h"
#include "kvcache/layers/quantized_layer.h"
#include "tests/contract/model.h"
#include "tests/support/exact_codec.h"
#include "tests/support/fed_layer.h"

namespace kvcache::testing {
namespace {

const LayerSpec kFull{};
constexpr std::int64_t kEncoderRoom = 10;  // tokens, where it is fixed

LayerSpec sliding(std::int64_t window) {
  return {.type = std::string(kSlidingAttention), .window = window};
}

LayerSpec chunked(std::int64_t chunk) {
  return {.type = std::string(kChunkedAttention), .window = chunk};
}

const LayerSpec kConv{.type = std::string(kConvolution), .states = 2};
const LayerSpec kNothing{.type = std::string(kDummy)};

LayerSpec linear(std::int64_t states) {
  return {.type = std::string(kLinearAttention), .states = states};
}

LayerSpec hybrid(std::int64_t states) { return {.type = std::string(kHybrid), .states = states}; }

LayerSpec hybrid_sliding(std::int64_t window) {
  return {.type = std::string(kHybridSliding), .window = window};
}

LayerSpec shared(std::int64_t donor) { return {.type = std::string(kShared), .donor = donor}; }

LayerSpec fed(std::int64_t window) { return {.type = std::string(kFed), .window = window}; }

// A layer that says how large what it is fed is; of several recurrences it has all but the last.
LayerSpec sized(LayerSpec spec) {
  if (has_keys(spec)) spec.kv_heads = 2, spec.key_dim = kKeyDim, spec.value_dim = kValueDim;
  if (!has_states(spec)) return spec;
  StateSizes sizes;
  for (std::int64_t i = 0; i < spec.states; ++i) {
    sizes.convolutions.push_back({.channels = kChannels, .taps = StateIndex{0, i}.taps()});
    if (i == 0 || i + 1 < spec.states) sizes.recurrences.push_back({.shape = {kStateSize}});
  }
  spec.state_sizes = sizes;
  return spec;
}

CacheKind dynamic(std::string name, std::vector<LayerSpec> layers,
                  const LayerRegistry& registry = dynamic_layers()) {
  const auto make = [layers, registry](std::shared_ptr<Memory> memory) {
    return std::make_unique<DynamicCache>(
        layers, DynamicCacheOptions{.memory = std::move(memory), .layers = registry});
  };
  return {"Dynamic" + std::move(name), layers, registry, make};
}

LayerRegistry with_fed_layers() {
  LayerRegistry registry = dynamic_layers();
  return add_layer<FedLayer>(registry, kFed);
}

CacheKind dynamic_lazy() {
  const auto make = [](std::shared_ptr<Memory> memory) {
    return std::make_unique<DynamicCache>(std::vector<LayerSpec>{},
                                          DynamicCacheOptions{.memory = std::move(memory)});
  };
  return {"DynamicLazy", {kFull, kFull}, dynamic_layers(), make};
}

CacheKind fixed(std::string name, std::vector<LayerSpec> layers, StaticLayerOptions sizes) {
  const auto make = [layers, sizes](std::shared_ptr<Memory> memory) {
    return std::make_unique<StaticCache>(
        layers, StaticCacheOptions{sizes.max_cache_len, sizes.record_slack, std::move(memory)});
  };
  return {"Static" + std::move(name), layers, static_layers(sizes), make, sizes};
}

CacheKind mamba(std::string name, std::vector<LayerSpec> layers) {
  const auto make = [layers](std::shared_ptr<Memory> memory) {
    return std::make_unique<MambaCache>(layers, MambaCacheOptions{.memory = std::move(memory)});
  };
  return {"Mamba" + std::move(name), layers, linear_layers(), make};
}

// Packs whole numbers exactly, keys and values in groups of so many tokens.
struct Packing {
  std::int64_t key_tokens, value_tokens, residual_length, pinned_tokens = 0;
};

template <typename L>
void add_packed(LayerRegistry& registry, const std::vector<std::string_view>& types,
                const QuantizedLayerOptions& options) {
  for (const std::string_view type : types) {
    registry.add(type, [options](const LayerSpec& spec, const std::shared_ptr<Memory>& memory) {
      return std::make_unique<L>(spec, options, memory);
    });
  }
}

CacheKind quantized(std::string name, std::vector<LayerSpec> layers, const Packing& packing,
                    const std::optional<StaticLayerOptions>& sizes = {}) {
  const QuantizedLayerOptions options{
      .codecs = {.keys = std::make_shared<ExactCodec>(packing.key_tokens),
                 .values = std::make_shared<ExactCodec>(packing.value_tokens),
                 .residual_length = packing.residual_length,
                 .pinned_tokens = packing.pinned_tokens},
      .fixed = sizes};
  LayerRegistry registry = common_layers();
  add_packed<QuantizedLayer>(registry, {kFullAttention, kSlidingAttention, kChunkedAttention},
                             options);
  add_packed<LinearAttentionAndQuantizedAttentionLayer>(registry, {kHybrid, kHybridSliding},
                                                        options);
  const auto make = [layers, registry](std::shared_ptr<Memory> memory) {
    return std::make_unique<QuantizedCache>(
        layers, QuantizedCacheOptions{.memory = std::move(memory), .layers = registry});
  };
  return {"Quantized" + std::move(name), layers, registry, make, sizes, /*packed=*/true};
}

CacheKind pair(std::string name, CacheKind decoder, const CacheKind& encoder) {
  const auto make = [own = decoder.make, encoded = encoder.make](std::shared_ptr<Memory> memory) {
    const auto layered = [](std::unique_ptr<Cache> cache) {
      return std::unique_ptr<LayeredCache>(&dynamic_cast<LayeredCache&>(*cache.release()));
    };
    return std::make_unique<EncoderDecoderCache>(layered(own(memory)), layered(encoded(memory)));
  };
  decoder.name = "EncoderDecoder" + std::move(name);
  decoder.make = make;
  decoder.encoder = std::make_shared<CacheKind>(encoder);
  return decoder;
}

}  // namespace

std::vector<CacheKind> cache_kinds() {
  return {
      dynamic_lazy(),
      dynamic("Full", {kFull, kFull}),
      dynamic("Sliding1", {sliding(1), sliding(1)}),
      dynamic("Sliding2", {sliding(2), sliding(2)}),
      dynamic("Sliding4", {sliding(4), sliding(4)}),
      dynamic("Sliding8", {sliding(8)}),
      dynamic("Chunked4", {chunked(4), chunked(4)}),
      dynamic("Mixed", {kFull, sliding(4), chunked(4), sliding(2)}),
      fixed("Full", {kFull, kFull}, {.max_cache_len = 24}),
      fixed("FullLarge", {kFull}, {.max_cache_len = 400}),
      fixed("Sliding1", {sliding(1), sliding(1)}, {.max_cache_len = 16}),
      fixed("Sliding2", {sliding(2), sliding(2)}, {.max_cache_len = 16}),
      fixed("Sliding4", {sliding(4), sliding(4)}, {.max_cache_len = 16}),
      fixed("Sliding8", {sliding(8)}, {.max_cache_len = 16}),
      fixed("Sliding8Slack3", {sliding(8), sliding(8)}, {.max_cache_len = 64, .record_slack = 3}),
      fixed("Chunked4", {chunked(4)}, {.max_cache_len = 16}),
      fixed("WindowsAboveCapacity", {sliding(8), sliding(20)}, {.max_cache_len = 8}),
      fixed("Mixed", {kFull, sliding(4), chunked(4), sliding(2)}, {.max_cache_len = 40}),
      fixed("MixedSlack2", {kFull, sliding(4), chunked(4), sliding(2)},
            {.max_cache_len = 400, .record_slack = 2}),
      fixed("Hybrid", {hybrid(1), hybrid_sliding(4)}, {.max_cache_len = 40}),
      fixed("HybridSlack2", {hybrid_sliding(3), linear(2)},
            {.max_cache_len = 64, .record_slack = 2}),
      mamba("", {linear(1), linear(2)}),
      mamba("Convolutions", {kConv, kNothing}),
      dynamic("LinearAndFull", {linear(1), kFull, kNothing, kConv}),
      dynamic("LinearAndSliding", {sliding(4), linear(1)}),
      dynamic("Hybrid", {hybrid(1), hybrid(2)}),
      dynamic("HybridSliding", {hybrid_sliding(4), hybrid_sliding(1), kFull}),
      dynamic("Shared", {kFull, sliding(4), shared(0), kNothing, shared(1), kFull, shared(0)}),
      fixed("Shared", {sliding(4), kFull, shared(0), shared(1)}, {.max_cache_len = 24}),
      dynamic("OwnKind", {fed(4), kFull, fed(2)}, with_fed_layers()),
      mamba("Sized", {sized(linear(1)), sized(linear(2))}),
      dynamic("HybridSized", {sized(hybrid(2)), sized(hybrid_sliding(4)), sized(kFull)}),
      quantized("Tokens", {kFull, kFull}, {1, 1, 3}),
      quantized("AllTokens", {kFull}, {1, 1, 0}),
      quantized("Groups", {kFull, kFull}, {4, 4, 2}),
      quantized("MixedGroups", {kFull, kFull}, {4, 1, 0}),
      quantized("Sliding", {sliding(4), sliding(8), sliding(1)}, {4, 4, 1}),
      quantized("SlidingTokens", {sliding(4), chunked(8)}, {1, 1, 2}),
      quantized("Mixed", {kFull, sliding(4), chunked(4), linear(1), hybrid(1), hybrid_sliding(5)},
                {1, 3, 1}),
      quantized("Shared", {kFull, sliding(4), shared(0), kNothing, shared(1)}, {4, 4, 0}),
      quantized("Sized", {sized(kFull), sized(sliding(6))}, {4, 4, 2}),
      quantized("Pinned", {kFull, sliding(9), sliding(4)}, {1, 1, 2, 3}),
      quantized("PinnedGroups", {kFull, chunked(12), sliding(14)}, {4, 1, 1, 3}),
      quantized("PinnedSized", {sized(kFull)}, {1, 4, 0, 5}),
      quantized("StaticTokens", {kFull, kFull}, {1, 1, 3}, StaticLayerOptions{48}),
      quantized("StaticGroups", {kFull, kFull}, {4, 4, 2}, StaticLayerOptions{48}),
      quantized("StaticMixedGroups", {kFull}, {4, 1, 0}, StaticLayerOptions{40}),
      quantized("StaticPinned", {kFull, sliding(12)}, {4, 4, 1, 3}, StaticLayerOptions{40}),
      quantized("StaticSliding", {sliding(4), sliding(8), sliding(1)}, {4, 4, 1},
                StaticLayerOptions{24}),
      quantized("StaticSlidingTokens", {sliding(4), chunked(8)}, {1, 1, 2},
                StaticLayerOptions{24, 6}),
      quantized("StaticMixed",
                {kFull, sliding(4), chunked(4), linear(1), hybrid(1), hybrid_sliding(5)}, {1, 3, 1},
                StaticLayerOptions{40}),
      quantized("StaticSized", {sized(kFull), sized(sliding(6))}, {4, 4, 2},
                StaticLayerOptions{32}),
      pair("Quantized", quantized("", {kFull, sliding(4)}, {4, 4, 1}), dynamic("", {kFull, kFull})),
      pair("Lazy", dynamic_lazy(), dynamic_lazy()),
      pair("Sliding4", dynamic("", {sliding(4), kFull}), dynamic("", {kFull, kFull})),
      pair("Hybrid", dynamic("", {linear(1), hybrid(2)}), dynamic("", {kFull, kFull})),
      pair("Static", fixed("", {kFull, sliding(4)}, {.max_cache_len = 24}),
           fixed("", {kFull, kFull}, {.max_cache_len = kEncoderRoom})),
      pair("StaticEncoder", dynamic("", {kFull}),
           fixed("", {kFull}, {.max_cache_len = kEncoderRoom})),
  };
}

namespace {

// Heads that the kind's layers are made for, or as many as asked.
std::int64_t heads_of(const CacheKind& kind, std::int64_t otherwise) {
  std::int64_t heads = 0;
  for (const LayerSpec& spec : kind.layers) heads = std::max(heads, spec.kv_heads);
  return heads > 0 ? heads : otherwise;
}

// Two of the settings, for kinds that take long.
void add_two(std::vector<Setting>& result, const CacheKind& kind) {
  result.push_back({kind, at::kFloat, /*recorded=*/true, 2, heads_of(kind, 2)});
  result.push_back({kind, at::kBFloat16, /*recorded=*/false, 1, heads_of(kind, 1)});
}

std::vector<Setting> settings_on_devices() {
  std::vector<Setting> result;
  const at::Device device(c10::kPrivateUse1, 0), other(c10::kPrivateUse1, 1);
  for (const CacheKind& kind : cache_kinds()) {
    // Packing takes many operators, each of which takes long there: kinds of many layers will do.
    if (kind.packed && kind.layers.size() < 4) continue;
    result.push_back({kind, at::kFloat, /*recorded=*/true, 2, 2, {device, other}});
    if (kind.packed) continue;
    result.push_back({kind, at::kFloat, /*recorded=*/false, 2, 2, {device}});
    result.push_back({kind, at::kBFloat16, /*recorded=*/false, 2, 2, {device}});
  }
  return result;
}

}  // namespace

std::vector<Setting> settings() {
  if (c10::impl::hasDeviceGuardImpl(c10::kPrivateUse1)) return settings_on_devices();
  std::vector<Setting> result;
  for (const CacheKind& kind : cache_kinds()) {
    if (kind.packed) {
      add_two(result, kind);
      continue;
    }
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool recorded : {false, true}) {
        for (const std::int64_t size : {1, 2}) {
          result.push_back({kind, dtype, recorded, size, heads_of(kind, size)});
        }
      }
    }
  }
  for (const CacheKind& kind : codec_kinds()) add_two(result, kind);
  return result;
}

std::string name_of(const Setting& setting) {
  return c10::str(setting.kind.name, "_", c10::toString(setting.dtype),
                  setting.recorded ? "_recorded_" : "_", setting.batch, "x", setting.heads,
                  setting.devices.size() > 1 ? "_divided" : "");
}

}  // namespace kvcache::testing
