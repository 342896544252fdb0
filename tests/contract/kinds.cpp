#include "tests/contract/kinds.h"

#include <c10/core/ScalarType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"

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

CacheKind dynamic(std::string name, std::vector<LayerSpec> layers) {
  const auto make = [layers](std::shared_ptr<Memory> memory) {
    return std::make_unique<DynamicCache>(layers, DynamicCacheOptions{.memory = std::move(memory)});
  };
  return {"Dynamic" + std::move(name), layers, dynamic_layers(), make};
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
      pair("Lazy", dynamic_lazy(), dynamic_lazy()),
      pair("Sliding4", dynamic("", {sliding(4), kFull}), dynamic("", {kFull, kFull})),
      pair("Hybrid", dynamic("", {linear(1), hybrid(2)}), dynamic("", {kFull, kFull})),
      pair("Static", fixed("", {kFull, sliding(4)}, {.max_cache_len = 24}),
           fixed("", {kFull, kFull}, {.max_cache_len = kEncoderRoom})),
      pair("StaticEncoder", dynamic("", {kFull}),
           fixed("", {kFull}, {.max_cache_len = kEncoderRoom})),
  };
}

std::vector<Setting> settings() {
  std::vector<Setting> result;
  for (const CacheKind& kind : cache_kinds()) {
    if (c10::impl::hasDeviceGuardImpl(c10::kPrivateUse1)) {
      const at::Device device(c10::kPrivateUse1, 0), other(c10::kPrivateUse1, 1);
      result.push_back({kind, at::kFloat, /*recorded=*/false, 2, 2, {device}});
      result.push_back({kind, at::kBFloat16, /*recorded=*/false, 2, 2, {device}});
      result.push_back({kind, at::kFloat, /*recorded=*/true, 2, 2, {device, other}});
      continue;
    }
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool recorded : {false, true}) {
        for (const std::int64_t size : {1, 2})
          result.push_back({kind, dtype, recorded, size, size});
      }
    }
  }
  return result;
}

std::string name_of(const Setting& setting) {
  return c10::str(setting.kind.name, "_", c10::toString(setting.dtype),
                  setting.recorded ? "_recorded_" : "_", setting.batch, "x", setting.heads,
                  setting.devices.size() > 1 ? "_divided" : "");
}

}  // namespace kvcache::testing
