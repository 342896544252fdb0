// What a model says of one layer's state, so that a cache can be made for it without knowing the
// model. Layer types carry the names of Transformers' `layer_types`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

struct LayerSpec {
  std::string type{kFullAttention};  // a name registered in the cache's LayerRegistry
  std::int64_t window = 0;           // tokens: sliding window or chunk size; 0 where there is none
  std::int64_t kv_heads = 0;         // 0: taken from the first keys that arrive
  std::int64_t key_dim = 0;          // head size of the keys, likewise
  std::int64_t value_dim = 0;        // head size of the values, likewise
  std::int64_t states = 1;           // of each kind, convolution and recurrent, in linear layers
  std::optional<std::int64_t> donor = {};  // the earlier layer that a shared one reads

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// Whether a layer of this type has convolution or recurrent states.
inline bool has_states(const LayerSpec& spec) {
  return spec.type == kLinearAttention || spec.type == kConvolution || spec.type == kHybrid ||
         spec.type == kHybridSliding;
}

}  // namespace kvcache
