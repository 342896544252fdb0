// One layered cache in a file: what is written of it, and how it takes over what a file says.
// JSON: "kind", "batch", "seen", "known",
//   "layers": [{"spec": {...}, "max_length", "counts": {name: integer},
//               "tensors": {name: its dtype and shape, such as "Float [1, 2, 9, 64]"}}]
// Tensors: "history.ids" int64 [batch, seen] (-1 in column `known`, any number after it),
// "history.valid" bool [batch, seen], "history.stamps" int64 [batch], and "layers.<i>.<name>": what
// is live, in order of time, its token dimension as long as that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/cache_file_section.h"
#include "kvcache/cache/layer_state.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/cache/serialization.h"

namespace kvcache {

// A friend of LayeredCache: works on its layers.
class CacheFile {
 public:
  using Tensors = std::map<std::string, at::Tensor>;

  // Adds the cache's tensors under `prefix`. Throws RuntimeError while a step is open or layers
  // differ in length.
  static nlohmann::json write(LayeredCache& cache, const std::string& prefix, Tensors& tensors);

  class Loading;
};

// In three parts, so that several caches load together. Unless apply() was called the cache is in
// the end as it was.
class CacheFile::Loading {
 public:
  // Throws RuntimeError while a step is open.
  Loading(LayeredCache& cache, detail::CacheFileSection file, const CacheFileOptions& options);
  ~Loading();
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  // Reads and checks all. Throws ValueError.
  void read();
  // Makes the layers that the cache is to go on with. Throws ValueError.
  void fill();
  // Goes on with what the file says.
  void apply();

  // What is going to be held.
  std::int64_t batch() const { return batch_; }
  const History& history() const { return history_; }

 private:
  void check_whole() const;
  History read_history() const;
  at::Tensor history_tensor(const char* name, at::ScalarType dtype, at::IntArrayRef shape) const;
  void make_layers();
  detail::LayerState read_layer(std::int64_t index) const;
  void read_tensors(std::int64_t index, const nlohmann::json& entry,
                    detail::LayerState& state) const;
  at::Device device(std::int64_t layer) const;

  template <typename Call>
  void naming(std::int64_t layer, const Call& call) const;

  LayeredCache& cache_;
  LayerStack& stack_;
  detail::CacheFileSection file_;
  const CacheFileOptions& options_;
  std::int64_t had_;  // layers, before those that are made as keys come in
  std::int64_t batch_;
  std::int64_t seen_;
  History history_;
  std::vector<detail::LayerState> states_;
  std::vector<std::unique_ptr<Layer>> layers_;
  bool applied_ = false;
};

}  // namespace kvcache
