// The cache kinds that the contract suite runs over. A new kind is one line in kinds.cpp.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/core/memory.h"
#include "kvcache/layers/registry.h"

namespace kvcache::testing {

struct CacheKind {
  std::string name;
  std::vector<LayerSpec> layers;  // also of a cache that makes them lazily
  LayerRegistry registry;         // makes single layers of the kind
  std::function<std::unique_ptr<Cache>(std::shared_ptr<Memory>)> make;
  std::optional<StaticLayerOptions> fixed = {};  // sizes of its layers; absent: they grow
  bool packed = false;  // some of its tokens are packed: rows of different lengths do not join
  double error = 0;     // of keys and values that were packed, at most
  // Of a pair of caches all of the above are the decoder's side; null: it is no pair.
  std::shared_ptr<const CacheKind> encoder = {};
};

std::vector<CacheKind> cache_kinds();

// Quantized caches of every backend, number of bits and axis, growing and of a fixed size, full and
// sliding: all of them in a full sweep, else a sample.
std::vector<CacheKind> codec_kinds();

// One setting of the suite: a kind, and what is fed to it.
struct Setting {
  CacheKind kind;
  at::ScalarType dtype;
  bool recorded;
  std::int64_t batch;
  std::int64_t heads;
  std::vector<at::Device> devices = {at::kCPU};  // of the layers, round and round

  at::Device device_of(std::int64_t layer) const {
    return devices[std::size_t(layer) % devices.size()];
  }
};

// Every kind with float32 and bfloat16, recorded and not, batch 1 x head 1 and batch 2 x heads 2
// (of layers made for some number of heads, those); packed kinds, which take long, in two of these.
// In a program with the simulated accelerator: both dtypes there, and recorded over both its
// devices; of packed kinds some, the latter only.
std::vector<Setting> settings();

std::string name_of(const Setting& setting);

inline void PrintTo(const Setting& setting, std::ostream* out) { *out << name_of(setting); }

}  // namespace kvcache::testing
