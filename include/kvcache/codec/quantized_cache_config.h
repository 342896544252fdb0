// Transformers' names for how a cache is quantized, and the codecs that they stand for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kvcache/codec/codec.h"

namespace kvcache {

// As `cache_config` has it. What is absent is Transformers' default: [4], [0], [0], [64], [128].
// Backend fp8 takes none of the numbers of groups: it packs all but the tokens of the last,
// unfinished block.
struct QuantizedCacheConfig {
  std::string backend = "quanto";                 // or "hqq", "fp8"; beyond Transformers "int"
  std::optional<std::int64_t> nbits = {};         // quanto: 2, 4; hqq: 1, 2, 3, 4, 8; int: 4, 8
  std::optional<std::int64_t> axis_key = {};      // see docs/quantization.md: 0 or -1 for quanto,
  std::optional<std::int64_t> axis_value = {};    // 0 or 1 for hqq
  std::optional<std::int64_t> q_group_size = {};  // values that share a scale, at least 1
  std::optional<std::int64_t> residual_length = {};  // last tokens that stay as they are, at least

  // Beyond Transformers, all off by default.
  std::optional<std::int64_t> key_nbits = {};    // instead of nbits
  std::optional<std::int64_t> value_nbits = {};  // likewise
  bool rotate_keys = false;        // turn keys before they are packed: see core/rotation.h
  std::int64_t pinned_tokens = 0;  // first ones of a text, padding included, that stay as they are
  std::int64_t first_dense_layers = 0;  // of those with keys, so many are not quantized from the
  std::int64_t last_dense_layers = 0;   // front, and so many from the back
};

// What a config comes to in a layer that is quantized.
struct QuantizedCodecs {
  std::shared_ptr<const Codec> keys;
  std::shared_ptr<const Codec> values;
  std::int64_t residual_length = 0;
  std::int64_t pinned_tokens = 0;
};

// Throws ValueError for a backend or a value that there is not, listing those there are.
QuantizedCodecs make_codecs(const QuantizedCacheConfig& config);

}  // namespace kvcache
