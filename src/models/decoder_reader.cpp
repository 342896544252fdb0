#include "models/decoder_reader.h"

#include <cmath>
#include <string>

namespace kvcache::detail {

RmsNorm DecoderReader::norm(const StateDict& weights, std::string_view name,
                            std::int64_t size) const {
  const at::Tensor weight = weights.take(std::string(name) + ".weight", {size});
  if (style_.zero_centered_norms) return RmsNorm::zero_centered(weight, config_.rms_norm_eps);
  return {weight, config_.rms_norm_eps};
}

AttentionBlock DecoderReader::attention(const StateDict& weights) const {
  const std::int64_t hidden = config_.hidden_size, dim = config_.head_dim;
  const std::int64_t queries = config_.num_attention_heads * dim;
  const std::int64_t keys = config_.num_key_value_heads * dim;
  AttentionBlock block{.head_dim = dim};
  if (weights.contains("qkv_proj.weight")) {
    const Linear all =
        Linear::read(weights.select("qkv_proj"), {queries + 2 * keys, hidden, style_.qkv_bias});
    block.query = all.part(0, queries);
    block.key = all.part(queries, keys);
    block.value = all.part(queries + keys, keys);
  } else {
    block.query = Linear::read(weights.select("q_proj"), {queries, hidden, style_.qkv_bias});
    block.key = Linear::read(weights.select("k_proj"), {keys, hidden, style_.qkv_bias});
    block.value = Linear::read(weights.select("v_proj"), {keys, hidden, style_.qkv_bias});
  }
  block.output = Linear::read(weights.select("o_proj"), {hidden, queries, style_.output_bias});
  if (style_.query_key_norm) {
    block.query_norm = norm(weights, "q_norm", dim);
    block.key_norm = norm(weights, "k_norm", dim);
  }
  if (config_.query_pre_attn_scalar) {
    block.options.scale = 1 / std::sqrt(*config_.query_pre_attn_scalar);
  }
  block.options.softcap = config_.attn_logit_softcapping;
  return block;
}

GatedMlp DecoderReader::mlp(const StateDict& weights) const {
  return GatedMlp::read(
      weights,
      {.hidden = config_.hidden_size, .inner = config_.intermediate_size, .bias = style_.mlp_bias},
      find_activation(config_.hidden_act));
}

DecoderLayer DecoderReader::layer(const StateDict& weights) const {
  const auto own_norm = [&](std::string_view name) {
    return norm(weights, name, config_.hidden_size);
  };
  DecoderLayer layer{.attention_norm = own_norm("input_layernorm"),
                     .attention = attention(weights.select("self_attn")),
                     .mlp_norm = own_norm(style_.sandwich_norms ? "pre_feedforward_layernorm"
                                                                : "post_attention_layernorm"),
                     .mlp = mlp(weights.select("mlp"))};
  if (style_.sandwich_norms) {
    layer.after_attention = own_norm("post_attention_layernorm");
    layer.after_mlp = own_norm("post_feedforward_layernorm");
  }
  return layer;
}

}  // namespace kvcache::detail
