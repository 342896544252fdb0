#include "kvcache/models/decoder.h"

#include <ATen/ops/full.h>

#include <map>
#include <string>

#include "models/decoder_reader.h"

namespace kvcache {

Heads AttentionBlock::project(const at::Tensor& hidden, const ForwardContext& context) const {
  const std::int64_t batch = context.positions().size(0), tokens = context.positions().size(1);
  const auto heads = [&](const Linear& linear) {
    return linear(hidden).view({batch, tokens, -1, head_dim});
  };
  return {heads(query), heads(key), heads(value)};
}

at::Tensor AttentionBlock::attend(std::int64_t layer, const Heads& heads,
                                  ForwardContext& context) const {
  const at::Tensor attended =
      context.attend(layer, heads.queries.transpose(1, 2),
                     {heads.keys.transpose(1, 2), heads.values.transpose(1, 2)}, options);
  return output(attended.transpose(1, 2).reshape({context.positions().numel(), -1}));
}

at::Tensor AttentionBlock::operator()(const at::Tensor& hidden, std::int64_t layer,
                                      const Rotation& rotation, ForwardContext& context) const {
  Heads heads = project(hidden, context);
  if (query_norm) heads.queries = (*query_norm)(heads.queries);
  if (key_norm) heads.keys = (*key_norm)(heads.keys);
  heads.queries = rotate(heads.queries, rotation);
  heads.keys = rotate(heads.keys, rotation);
  return attend(layer, heads, context);
}

Vocabulary Vocabulary::read(const StateDict& weights, const ModelConfig& config,
                            std::string_view embeddings) {
  const std::int64_t size = config.vocab_size, hidden = config.hidden_size;
  Vocabulary vocabulary{.embedding = weights.take(embeddings, {size, hidden}),
                        .softcap = config.final_logit_softcapping};
  if (config.tie_word_embeddings) {
    vocabulary.output = Linear(vocabulary.embedding);
    weights.ignore_unused("lm_head.weight");
  } else {
    vocabulary.output = Linear(weights.take("lm_head.weight", {size, hidden}));
  }
  return vocabulary;
}

at::Tensor Vocabulary::embed(const at::Tensor& ids) const {
  at::Tensor hidden = embedding.index_select(0, ids.flatten().to(embedding.device()));
  // Rounded to the dtype before it multiplies, as Transformers does.
  if (scale != 1) hidden.mul_(at::full({}, scale, hidden.options()));
  return hidden;
}

at::Tensor Vocabulary::logits(const at::Tensor& hidden) const {
  const at::Tensor rows = hidden.flatten(0, 1).to(output.device());
  at::Tensor logits = output(rows).view({hidden.size(0), hidden.size(1), -1});
  if (softcap) logits.div_(*softcap).tanh_().mul_(*softcap);
  return logits;
}

DecoderModel::DecoderModel(const ModelConfig& config, const StateDict& weights,
                           const LoadOptions& options, const DecoderStyle& style)
    : CausalLM(config, options.dtype.value(), options.device),
      vocabulary_(Vocabulary::read(weights, config)) {
  vocabulary_.scale = style.embedding_scale;
  const detail::DecoderReader reader(config, style);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(reader.layer(weights.select("model.layers." + std::to_string(i))));
  }
  norm_ = reader.norm(weights.select("model"), "norm", config.hidden_size);
  weights.ignore_unused("*.rotary_emb.inv_freq");  // derived; old files hold it
  weights.verify();
  // Ropes come last: their size is one that weights confirm. One for each in use.
  std::map<std::string, std::size_t> made;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto own = config.layer_ropes.find(config.layer_types.at(i));
    const bool shared = own == config.layer_ropes.end();
    const auto [place, is_new] = made.emplace(shared ? "" : own->first, ropes_.size());
    if (is_new) {
      ropes_.emplace_back(shared ? config.rope : own->second, config.head_dim, options.device);
    }
    layers_[i].rope = place->second;
  }
}

at::Tensor DecoderModel::hidden_states(const at::Tensor& ids, ForwardContext& context) const {
  // Two dimensions throughout: [batch * tokens, hidden_size].
  at::Tensor hidden = vocabulary_.embed(ids);
  std::vector<Rotation> rotations;
  rotations.reserve(ropes_.size());
  for (const Rope& rope : ropes_) {
    rotations.push_back(rope.at(context.positions(), dtype(), context.regimes()));
  }
  const auto behind = [](const std::optional<RmsNorm>& norm, const at::Tensor& x) {
    return norm ? (*norm)(x) : x;
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    hidden = hidden.to(layer.attention_norm.device());
    Rotation& rotation = rotations[layer.rope];
    rotation = rotation.to(hidden.device());
    hidden = hidden.add_(behind(layer.after_attention,
                                layer.attention(layer.attention_norm(hidden),
                                                static_cast<std::int64_t>(i), rotation, context)));
    hidden = hidden.add_(behind(layer.after_mlp, layer.mlp(layer.mlp_norm(hidden))));
  }
  return norm_(hidden.to(norm_.device())).view({ids.size(0), ids.size(1), -1});
}

at::Tensor DecoderModel::head(const at::Tensor& hidden) const { return vocabulary_.logits(hidden); }

}  // namespace kvcache
