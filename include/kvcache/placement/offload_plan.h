// Which layers' bytes leave the device, and which come back when: integers only. A placement that
// offloads carries out what this says.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/core/layer_spec.h"

namespace kvcache {

struct OffloadPlanOptions {
  bool only_non_sliding = false;  // layers bounded by a window or chunk stay on the device
  std::int64_t lookahead = 1;     // offloaded layers that are fetched ahead of the current one
};

class OffloadPlan {
 public:
  // Keys and values of attention layers are offloaded; layers without any (linear, dummy, shared)
  // stay. Throws ValueError for a lookahead below 1.
  explicit OffloadPlan(const std::vector<LayerSpec>& layers, OffloadPlanOptions options = {})
      : lookahead_(options.lookahead) {
    check_value(lookahead_ >= 1, "the lookahead is ", lookahead_, " layers; it must be at least 1");
    for (const LayerSpec& spec : layers) offloaded_.push_back(leaves(spec, options));
  }

  // Whether this layer's bytes leave the device between its turns.
  bool offloaded(std::int64_t layer) const { return offloaded_.at(index(layer)); }

  // The layers whose bytes are to be on the device, or on their way, while `layer` has its turn:
  // itself if it is offloaded, then the next offloaded ones, from the first again after the last,
  // each once. Empty if none is offloaded.
  std::vector<std::int64_t> on_device(std::int64_t layer) const {
    std::vector<std::int64_t> result;
    if (offloaded(layer)) result.push_back(layer);
    const std::vector<std::int64_t> next = to_prefetch(layer);
    result.insert(result.end(), next.begin(), next.end());
    return result;
  }

  // Of those, the ones to fetch ahead: the next `lookahead` offloaded layers after `layer`, other
  // than itself.
  std::vector<std::int64_t> to_prefetch(std::int64_t layer) const {
    std::vector<std::int64_t> result;
    const auto layers = static_cast<std::int64_t>(offloaded_.size());
    for (std::int64_t step = 1; step < layers; ++step) {
      if (static_cast<std::int64_t>(result.size()) == lookahead_) break;
      const std::int64_t next = (layer + step) % layers;
      if (offloaded(next)) result.push_back(next);
    }
    return result;
  }

 private:
  static std::size_t index(std::int64_t layer) { return static_cast<std::size_t>(layer); }

  static bool leaves(const LayerSpec& spec, const OffloadPlanOptions& options) {
    if (spec.type == kFullAttention || spec.type == kHybrid) return true;
    const bool bounded = spec.type == kSlidingAttention || spec.type == kChunkedAttention ||
                         spec.type == kHybridSliding;
    return bounded && !options.only_non_sliding;
  }

  std::vector<bool> offloaded_;
  std::int64_t lookahead_;
};

}  // namespace kvcache
