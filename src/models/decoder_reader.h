// Reads the weights of llama-like parts under the names that most families give them.
#pragma once

#include <string_view>

#include "kvcache/models/decoder.h"

namespace kvcache::detail {

// Keeps references to both; for use while a model is made.
class DecoderReader {
 public:
  DecoderReader(const ModelConfig& config, const DecoderStyle& style)
      : config_(config), style_(style) {}

  // "<name>.weight", of `size` numbers.
  RmsNorm norm(const StateDict& weights, std::string_view name, std::int64_t size) const;

  // From a view of the attention's own weights: q_proj, k_proj, v_proj or, where the file has it,
  // qkv_proj in their place; o_proj; q_norm and k_norm where the style has them.
  AttentionBlock attention(const StateDict& weights) const;

  // From a view of the MLP's own weights.
  GatedMlp mlp(const StateDict& weights) const;

  // From a view of the layer's own weights.
  DecoderLayer layer(const StateDict& weights) const;

 private:
  const ModelConfig& config_;
  const DecoderStyle& style_;
};

}  // namespace kvcache::detail
