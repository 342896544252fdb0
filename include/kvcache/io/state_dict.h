// A checkpoint's weights by name, handed down to a model's parts by select(prefix). Faults are
// gathered while a model takes its weights; verify() then lists them all at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

struct LoadOptions {
  // Floating-point weights are converted to this dtype; absent: each keeps its own. Others
  // (integers, booleans) are never converted.
  std::optional<at::ScalarType> dtype = std::nullopt;
  at::Device device = at::kCPU;
  // Parts that lie elsewhere than on `device`, by the prefix of their weights' names, e.g.
  // "model.layers.3" or "lm_head"; of several the longest counts. A layer is not divided.
  std::map<std::string, at::Device> device_map = {};

  // Where the weight or part `name` belongs.
  at::Device device_of(std::string_view name) const;
};

// A view of the weights whose names start with a prefix. Views are cheap to copy and share one
// ledger of what was taken, so verify() on any of them judges the whole checkpoint. A family reads:
//
//   StateDict attention = weights.select("self_attn");
//   query_weight = attention.take("q_proj.weight", {heads * head_dim, hidden});
//
// Not for use from several threads at once; the tensors it gave are.
class StateDict {
 public:
  // Opens model.safetensors, or else model.safetensors.index.json and all shards it names, in
  // `folder`. Nothing is read but headers. Throws ValueError for a damaged file, an index that
  // names files outside the folder, shards that do not hold exactly what the index says, and a
  // device map that names no weight.
  static StateDict from_checkpoint(const std::filesystem::path& folder,
                                   const LoadOptions& options = {});

  // Weights that are in memory already. Throws ValueError for an undefined tensor and a device map
  // that names no weight.
  explicit StateDict(const std::map<std::string, at::Tensor>& weights,
                     const LoadOptions& options = {});

  // The weights named "<prefix>.<name>", as "<name>". An empty prefix gives this view.
  StateDict select(std::string_view prefix) const;

  // True if this view has the weight. Does not count as use.
  bool contains(std::string_view name) const;

  // The weight, of exactly `shape`, in the dtype and on the device that LoadOptions ask for. Where
  // that is what the file holds, the tensor lies in the mapped file: no copy, READ-ONLY. Otherwise
  // it is a copy, and the file's pages are released. Taken twice, a weight is converted twice:
  // share the tensor where weights are tied.
  // A weight that is missing or of another shape is noted for verify(); the result is then zeros of
  // `shape` that take no memory, so that the model goes on and finds its other faults. Throws
  // ValueError only for a negative size in `shape`, and for BOOL data other than 0 and 1.
  at::Tensor take(std::string_view name, at::IntArrayRef shape) const;

  // Shapes of all weights of this view, by name. Reads headers only; does not count as use.
  std::map<std::string, std::vector<std::int64_t>> shapes() const;

  // Weights of this view that match `pattern` ('*' any text, '?' one character) may stay unused,
  // e.g. "*.rotary_emb.inv_freq" of old checkpoints.
  void ignore_unused(std::string_view pattern) const;

  // Throws ValueError if any weight was missing, of another shape, or never taken. The message
  // lists each of them, with shapes (of each sort the first 20, and how many more there are).
  void verify() const;

 private:
  struct Ledger;
  StateDict(std::shared_ptr<Ledger> ledger, std::string prefix);

  std::shared_ptr<Ledger> ledger_;
  std::string prefix_;  // empty, or ends with '.'
};

}  // namespace kvcache
