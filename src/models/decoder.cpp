#include "kvcache/models/decoder.h"

#include <string>
#include <utility>

namespace kvcache {
namespace {

// Takes the weights of one layer's parts.
class LayerReader {
 public:
  LayerReader(const ModelConfig& config, const DecoderStyle& style)
      : config_(config), style_(style) {}

  DecoderLayer read(const StateDict& weights) const {
    return {norm(weights, "input_layernorm", config_.hidden_size),
            attention(weights.select("self_attn")),
            norm(weights, "post_attention_layernorm", config_.hidden_size),
            mlp(weights.select("mlp"))};
  }

  RmsNorm norm(const StateDict& weights, const std::string& name, std::int64_t size) const {
    return {weights.take(name + ".weight", {size}), config_.rms_norm_eps};
  }

 private:
  AttentionBlock attention(const StateDict& weights) const {
    const std::int64_t hidden = config_.hidden_size, dim = config_.head_dim;
    const std::int64_t queries = config_.num_attention_heads * dim;
    const std::int64_t keys = config_.num_key_value_heads * dim;
    AttentionBlock block{
        Linear::read(weights.select("q_proj"), {queries, hidden, style_.qkv_bias}),
        Linear::read(weights.select("k_proj"), {keys, hidden, style_.qkv_bias}),
        Linear::read(weights.select("v_proj"), {keys, hidden, style_.qkv_bias}),
        Linear::read(weights.select("o_proj"), {hidden, queries, style_.output_bias}),
        std::nullopt,
        std::nullopt,
        dim};
    if (style_.query_key_norm) {
      block.query_norm = norm(weights, "q_norm", dim);
      block.key_norm = norm(weights, "k_norm", dim);
    }
    return block;
  }

  GatedMlp mlp(const StateDict& weights) const {
    return GatedMlp::read(weights,
                          {.hidden = config_.hidden_size,
                           .inner = config_.intermediate_size,
                           .bias = style_.mlp_bias},
                          find_activation(config_.hidden_act));
  }

  const ModelConfig& config_;
  const DecoderStyle& style_;
};

}  // namespace

at::Tensor AttentionBlock::operator()(const at::Tensor& hidden, std::int64_t layer,
                                      const Rotation& rotation, ForwardContext& context) const {
  const std::int64_t batch = context.positions().size(0), tokens = context.positions().size(1);
  const auto heads = [&](const Linear& linear) {
    return linear(hidden).view({batch, tokens, -1, head_dim});
  };
  at::Tensor queries = heads(query), keys = heads(key);
  if (query_norm) queries = (*query_norm)(queries);
  if (key_norm) keys = (*key_norm)(keys);
  queries = rotate(queries, rotation).transpose(1, 2);
  keys = rotate(keys, rotation).transpose(1, 2);
  const at::Tensor values = heads(value).transpose(1, 2);
  const at::Tensor attended = context.attend(layer, queries, {keys, values});
  return output(attended.transpose(1, 2).reshape({batch * tokens, -1}));
}

DecoderModel::DecoderModel(const ModelConfig& config, const StateDict& weights,
                           const LoadOptions& options, const DecoderStyle& style)
    : CausalLM(config, options.dtype.value(), options.device),
      embedding_(
          weights.take("model.embed_tokens.weight", {config.vocab_size, config.hidden_size})) {
  const LayerReader reader(config, style);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(reader.read(weights.select("model.layers." + std::to_string(i))));
  }
  norm_ = reader.norm(weights.select("model"), "norm", config.hidden_size);
  if (config.tie_word_embeddings) {
    head_ = Linear(embedding_);
    weights.ignore_unused("lm_head.weight");
  } else {
    head_ = Linear(weights.take("lm_head.weight", {config.vocab_size, config.hidden_size}));
  }
  weights.ignore_unused("*.rotary_emb.inv_freq");  // derived; old files hold it
  weights.verify();
  rope_ = Rope(config.rope, config.head_dim, options.device);  // of a size that weights confirm
}

at::Tensor DecoderModel::hidden_states(const at::Tensor& ids, ForwardContext& context) const {
  // Two dimensions throughout: [batch * tokens, hidden_size].
  at::Tensor hidden = embedding_.index_select(0, ids.flatten().to(embedding_.device()));
  Rotation rotation = rope_.at(context.positions(), dtype());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    hidden = hidden.to(layer.attention_norm.device());
    rotation = rotation.to(hidden.device());
    hidden = hidden.add_(layer.attention(layer.attention_norm(hidden), static_cast<std::int64_t>(i),
                                         rotation, context));
    hidden = hidden.add_(layer.mlp(layer.mlp_norm(hidden)));
  }
  return norm_(hidden.to(norm_.device())).view({ids.size(0), ids.size(1), -1});
}

at::Tensor DecoderModel::head(const at::Tensor& hidden) const {
  return head_(hidden.flatten(0, 1).to(head_.device())).view({hidden.size(0), hidden.size(1), -1});
}

}  // namespace kvcache
