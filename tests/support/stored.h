// What a cache's layers hold, read through its visitor.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <string_view>
#include <vector>

#include "kvcache/cache/layered_cache.h"

namespace kvcache::testing {

// What a tensor promises, oldest first; aliases it unless it lies in two parts.
inline at::Tensor live_of(const TensorInfo& info, const at::Tensor& tensor) {
  const auto parts = detail::live_parts(info, tensor);
  return parts.size() == 1 ? parts[0] : at::cat({parts[0], parts[1]}, *info.token_dim);
}

// The buffers of every layer, spare room included; undefined where a layer has none yet.
inline std::vector<KeyValue> buffers(LayeredCache& cache) {
  struct Collect final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      if (info.name == "keys") layers.push_back({tensor, {}});
      if (info.name == "values") layers.back().values = tensor;
    }
    void count(std::string_view, std::int64_t&) override {}

    std::vector<KeyValue> layers;
  };
  Collect collect;
  cache.visit(collect);
  return std::move(collect.layers);
}

// The live keys and values of every layer, oldest first; [0] where a layer holds none yet. They
// may alias the cache. For storages of plain "keys" and "values".
inline std::vector<KeyValue> stored(LayeredCache& cache) {
  struct Collect final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      const at::Tensor live = tensor.defined() ? live_of(info, tensor) : at::empty({0});
      if (info.name == "keys") layers.push_back({live, live});
      if (info.name == "values") layers.back().values = live;
    }
    void count(std::string_view, std::int64_t&) override {}

    std::vector<KeyValue> layers;
  };
  Collect collect;
  cache.visit(collect);
  return std::move(collect.layers);
}

}  // namespace kvcache::testing
