// Quantized caches with real codecs, whose keys and values come back within a bound.

#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/quantized_cache.h"
#include "tests/contract/kinds.h"
#include "tests/support/sweep.h"

namespace kvcache::testing {
namespace {

constexpr double kRange = 250;  // of the suite's keys, and of its values

// Beside the codec's own error that of bfloat16 and of scales in float16.
constexpr double kRounding = 2;

struct Coded {
  std::string name;
  QuantizedCacheConfig config;
  double error;
};

void add(std::vector<Coded>& all, const std::string& backend, std::int64_t bits,
         const std::vector<std::int64_t>& axes) {
  const double step = kRange / double((1 << bits) - 1);
  for (const std::int64_t key : axes) {
    for (const std::int64_t value : axes) {
      all.push_back({backend + std::to_string(bits) + (key == axes[0] ? "Keys0" : "Keys1") +
                         (value == axes[0] ? "Values0" : "Values1"),
                     {.backend = backend,
                      .nbits = bits,
                      .axis_key = key,
                      .axis_value = value,
                      .q_group_size = 4,
                      .residual_length = 3},
                     kRounding + (backend == "hqq" ? step : step / 2)});
    }
  }
}

std::vector<Coded> coded() {
  std::vector<Coded> all;
  for (const std::int64_t bits : {2, 4}) add(all, "quanto", bits, {0, -1});
  for (const std::int64_t bits : {1, 2, 3, 4, 8}) add(all, "hqq", bits, {0, 1});
  for (const std::int64_t bits : {4, 8}) {
    all.push_back({"int" + std::to_string(bits),
                   {.backend = "int", .nbits = bits, .residual_length = 3},
                   kRounding + kRange / (bits == 4 ? 7 : 127) / 2});
  }
  all.push_back({"fp8", {.backend = "fp8"}, kRounding + kRange / 16});
  return all;
}

CacheKind kind_of(const Coded& coded, bool fixed, std::int64_t window) {
  // fp8 packs by 64 tokens.
  const bool by_64 = coded.config.backend == "fp8";
  const std::optional<StaticLayerOptions> sizes =
      fixed ? std::optional(StaticLayerOptions{.max_cache_len = by_64 ? 200 : 48}) : std::nullopt;
  LayerSpec spec;
  if (window > 0 && by_64) window = 80;
  if (window > 0) spec = {.type = std::string(kSlidingAttention), .window = window};
  const std::vector<LayerSpec> layers{spec};
  const LayerRegistry registry = quantized_layers(coded.config, sizes);
  const auto make = [layers, registry](std::shared_ptr<Memory> memory) {
    return std::make_unique<QuantizedCache>(
        layers, QuantizedCacheOptions{.memory = std::move(memory), .layers = registry});
  };
  return {.name = std::string("Coded") + (fixed ? "Static" : "") +
                  (window > 0 ? "Sliding_" : "Full_") + coded.name,
          .layers = layers,
          .registry = registry,
          .make = make,
          .fixed = sizes,
          .packed = true,
          .error = coded.error};
}

}  // namespace

std::vector<CacheKind> codec_kinds() {
  constexpr std::int64_t kStep = 29;  // of a sample, over kinds in order
  std::vector<CacheKind> kinds;
  std::int64_t index = 0;
  for (const Coded& each : coded()) {
    for (const bool fixed : {false, true}) {
      for (const std::int64_t window : {0, 9}) {
        if (index++ % sweep_count(kStep, 1) == 0) kinds.push_back(kind_of(each, fixed, window));
      }
    }
  }
  return kinds;
}

}  // namespace kvcache::testing
