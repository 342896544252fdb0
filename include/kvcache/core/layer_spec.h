// What a model says of one layer's state, so that a cache can be made for it without knowing the
// model. Layer types carry the names of Transformers' `layer_types`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";
inline constexpr std::string_view kChunkedAttention = "chunked_attention";

struct LayerSpec {
  std::string type{kFullAttention};  // a name registered in the cache's LayerRegistry
  std::int64_t window = 0;           // tokens: sliding window or chunk size; 0 where there is none
  std::int64_t kv_heads = 0;         // 0: taken from the first keys that arrive
  std::int64_t key_dim = 0;          // head size of the keys, likewise
  std::int64_t value_dim = 0;        // head size of the values, likewise

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

}  // namespace kvcache
