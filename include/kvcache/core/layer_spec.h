// What a model says of one layer's state, so that a cache can be made for it without knowing the
// model. Layer types carry the names of Transformers' `layer_types`.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/core/dtype_name.h"

namespace kvcache {

inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";
inline constexpr std::string_view kChunkedAttention = "chunked_attention";
inline constexpr std::string_view kLinearAttention = "linear_attention";  // recurrent states
inline constexpr std::string_view kConvolution = "conv";                  // short convolutions
inline constexpr std::string_view kHybrid = "hybrid";                     // full attention + states
inline constexpr std::string_view kHybridSliding = "hybrid_sliding";      // sliding + states
inline constexpr std::string_view kDummy = "dummy";                       // keeps nothing
inline constexpr std::string_view kShared = "shared";  // reads another layer's keys and values

// What a convolution over time takes in.
struct ConvolutionSize {
  std::int64_t channels = 0;  // of its inputs, which have the model's dtype; 0: there is none
  std::int64_t taps = 0;      // its kernel_size; taps - 1 inputs are kept

  bool is_none() const { return channels == 0; }
  friend bool operator==(const ConvolutionSize&, const ConvolutionSize&) = default;
  friend std::ostream& operator<<(std::ostream& out, const ConvolutionSize& size) {
    return out << size.channels << " channels and " << size.taps << " taps";
  }
};

// One state of a recurrence.
struct RecurrentSize {
  std::vector<std::int64_t> shape = {0};             // without rows; [0]: there is none
  std::optional<at::ScalarType> dtype = at::kFloat;  // absent: the model's

  bool is_none() const { return shape.size() == 1 && shape[0] == 0; }
  friend bool operator==(const RecurrentSize&, const RecurrentSize&) = default;
  friend std::ostream& operator<<(std::ostream& out, const RecurrentSize& size) {
    out << "shape " << at::IntArrayRef(size.shape);
    return size.dtype ? out << " and dtype " << detail::dtype_name(*size.dtype) : out;
  }
};

// The states of a linear layer: each one listed is fed in every step, and no other.
struct StateSizes {
  std::vector<ConvolutionSize> convolutions = {};
  std::vector<RecurrentSize> recurrences = {};

  friend bool operator==(const StateSizes&, const StateSizes&) = default;
  friend std::ostream& operator<<(std::ostream& out, const StateSizes& sizes) {
    const char* separator = "";
    for (const auto& size : sizes.convolutions) {
      out << std::exchange(separator, ", ") << "a convolution of " << size;
    }
    for (const auto& size : sizes.recurrences) {
      out << std::exchange(separator, ", ") << "a recurrent state of " << size;
    }
    return out;
  }
};

struct LayerSpec {
  std::string type{kFullAttention};  // a name registered in the cache's LayerRegistry
  std::int64_t window = 0;           // tokens: sliding window or chunk size; 0 where there is none
  std::int64_t kv_heads = 0;         // 0: taken from the first keys that arrive
  std::int64_t key_dim = 0;          // head size of the keys, likewise
  std::int64_t value_dim = 0;        // head size of the values, likewise
  std::int64_t states = 1;           // of each kind, convolution and recurrent, in linear layers;
                                     // a step feeds one or both of each number
  std::optional<std::int64_t> donor = {};      // the earlier layer that a shared one reads
  std::optional<StateSizes> state_sizes = {};  // absent: taken from the first states that arrive

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// Type and window, as messages name a layer: "sliding_attention, window 4".
inline std::string described(const LayerSpec& spec) {
  return spec.window > 0 ? spec.type + ", window " + std::to_string(spec.window) : spec.type;
}

// Whether a layer of this type has convolution or recurrent states.
inline bool has_states(const LayerSpec& spec) {
  return spec.type == kLinearAttention || spec.type == kConvolution || spec.type == kHybrid ||
         spec.type == kHybridSliding;
}

// Whether some layer loses tokens or states as the text goes on: those behind its window, which
// counts padding too, or all but what a state has taken in.
inline bool any_forgets(const std::vector<LayerSpec>& layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return layer.window > 0 || has_states(layer); });
}

}  // namespace kvcache
