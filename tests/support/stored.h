// What a cache's layers hold, read through its visitor.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
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

// Parts of one tensor [batch or 1, heads, tokens, dim], oldest first, as one of `batch` rows; [0]
// where there is none. Aliases a single part of all rows.
inline at::Tensor joined(const std::vector<at::Tensor>& parts, std::int64_t batch) {
  if (parts.empty()) return at::empty({0});
  std::vector<at::Tensor> rows;
  for (const at::Tensor& part : parts) {
    const bool shared = part.size(0) == 1 && batch > 1;
    rows.push_back(shared ? part.expand({batch, -1, -1, -1}) : part);
  }
  return rows.size() == 1 ? rows[0] : at::cat(rows, 2);
}

// The live keys and values of every layer, oldest first; [0] where a layer holds none yet. They
// alias the cache unless they lie in parts. For storages of plain "keys" and "values".
inline std::vector<KeyValue> stored(LayeredCache& cache) {
  struct Parts {
    std::vector<at::Tensor> keys, values;
  };
  struct Collect final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      if (fresh && info.name == "keys") layers.emplace_back();
      fresh = fresh && info.name != "keys";
      if (!tensor.defined()) return;
      if (info.name == "keys") layers.back().keys.push_back(live_of(info, tensor));
      if (info.name == "values") layers.back().values.push_back(live_of(info, tensor));
    }
    void count(std::string_view name, std::int64_t&) override {
      if (name == "seen") fresh = true;
    }

    std::vector<Parts> layers;
    bool fresh = false;  // no keys of this layer came yet
  };
  Collect collect;
  cache.visit(collect);
  std::vector<KeyValue> result;
  for (const Parts& parts : collect.layers) {
    result.push_back(
        {joined(parts.keys, cache.batch_size()), joined(parts.values, cache.batch_size())});
  }
  return result;
}

}  // namespace kvcache::testing
