#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/decoder.h"
#include "kvcache/models/experts.h"
#include "models/decoder_config.h"
#include "models/decoder_reader.h"
#include "models/families.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kChunk = 8192;     // tokens
constexpr std::int64_t kMlpSize = 16384;  // of layers without experts
constexpr std::int64_t kNoRopeEvery = 4;  // layers
constexpr std::int64_t kMaxExperts = 65'536;

void read_rope_layers(const ConfigReader& json, ModelConfig& config) {
  const std::int64_t every = json.size("no_rope_layer_interval").value_or(kNoRopeEvery);
  const auto listed = json.integers("no_rope_layers").value_or(std::vector<std::int64_t>{});
  const auto given = static_cast<std::int64_t>(listed.size());
  check_value(given == 0 || given >= config.num_hidden_layers, json.field("no_rope_layers"),
              " has ", given, " entries, but num_hidden_layers is ", config.num_hidden_layers);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.rope_layers.push_back(given == 0 ? (layer + 1) % every != 0
                                            : listed[static_cast<std::size_t>(layer)] != 0);
  }
}

void read_experts_config(const ConfigReader& json, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.count = json.size("num_local_experts", kMaxExperts).value_or(16);
  experts.per_token = json.size("num_experts_per_tok", experts.count).value_or(1);
  experts.intermediate_size = std::exchange(config.intermediate_size,
                                            json.size("intermediate_size_mlp").value_or(kMlpSize));
  experts.layers.assign(static_cast<std::size_t>(config.num_hidden_layers), false);
  const std::int64_t step = json.size("interleave_moe_layer_step").value_or(1);
  const auto listed = json.integers("moe_layers");
  if (!listed) {
    for (std::int64_t i = step - 1; i < config.num_hidden_layers; i += step) {
      experts.layers[static_cast<std::size_t>(i)] = true;
    }
    return;
  }
  for (const std::int64_t layer : *listed) {
    check_value(layer >= 0 && layer < config.num_hidden_layers, json.field("moe_layers"), " has ",
                layer, ", but the layers are 0 to ", config.num_hidden_layers - 1);
    experts.layers[static_cast<std::size_t>(layer)] = true;
  }
}

void read_temperature(const ConfigReader& json, ModelConfig& config) {
  if (!json.flag("attn_temperature_tuning").value_or(true)) return;
  config.temperature_tuning = {
      .floor_scale = static_cast<double>(json.size("floor_scale").value_or(8192)),
      .scale = json.number("attn_scale").value_or(0.1)};
}

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config =
      read_decoder_config(json, {.vocab_size = 202048,
                                 .hidden_size = 5120,
                                 .intermediate_size = 8192,
                                 .num_hidden_layers = 48,
                                 .num_attention_heads = 40,
                                 .num_key_value_heads = 8,
                                 .head_dim = json.contains("head_dim") ? 0 : kHeadDim,
                                 .max_position_embeddings = 4096 * 32,
                                 .rms_norm_eps = 1e-5,
                                 .rope = {.theta = 500'000},
                                 .bos_token_id = 1,
                                 .eos_token_ids = {2}});
  config.attention_bias = json.flag("attention_bias").value_or(false);
  config.use_qk_norm = json.flag("use_qk_norm").value_or(true);
  config.attention_chunk_size = json.size("attention_chunk_size");  // null: none
  if (!json.contains("attention_chunk_size")) config.attention_chunk_size = kChunk;
  read_rope_layers(json, config);
  read_experts_config(json, config);
  read_temperature(json, config);
  std::vector<std::string> derived;
  for (const bool rope : config.rope_layers) {
    derived.emplace_back(rope && config.attention_chunk_size ? kChunkedAttention : kFullAttention);
  }
  config.layer_types = read_layer_types(json, config, std::move(derived));
  return config;
}

struct Llama4Layer {
  RmsNorm attention_norm;
  AttentionBlock attention;
  bool rope;
  RmsNorm mlp_norm;
  std::variant<GatedMlp, ExpertsBlock> mlp = {};
};

class Llama4Text final : public CausalLM {
 public:
  Llama4Text(const ModelConfig& config, const StateDict& weights, const LoadOptions& options);

 protected:
  at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const override;
  at::Tensor head(const at::Tensor& hidden) const override { return vocabulary_.logits(hidden); }

 private:
  Llama4Layer read_layer(const StateDict& weights, std::size_t index,
                         const DecoderReader& reader) const;
  at::Tensor attend(const at::Tensor& hidden, std::int64_t layer, const Rotation& rotation,
                    ForwardContext& context) const;
  at::Tensor tuned(const at::Tensor& queries, const at::Tensor& positions) const;

  Vocabulary vocabulary_;
  std::vector<Llama4Layer> layers_;
  RmsNorm norm_;
  Rope rope_;
};

ExpertsBlock read_experts_block(const StateDict& weights, const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  const std::int64_t hidden = config.hidden_size, inner = experts.intermediate_size;
  const Activation activation = find_activation(config.hidden_act);
  return {.router = {.scores = Linear::read(weights.select("router"), {experts.count, hidden}),
                     .top_k = experts.per_token,
                     .kind = Router::Scores::sigmoid},
          .experts = read_experts(
              weights.select("experts"),
              {.experts = experts.count, .hidden = hidden, .inner = inner, .input_first = true},
              activation),
          .shared = SharedExpert{GatedMlp::read(weights.select("shared_expert"),
                                                {.hidden = hidden, .inner = inner}, activation)},
          .weigh_inputs = true};
}

Llama4Layer Llama4Text::read_layer(const StateDict& weights, std::size_t index,
                                   const DecoderReader& reader) const {
  const StateDict mlp = weights.select("feed_forward");
  const std::int64_t hidden = config().hidden_size;
  Llama4Layer layer{.attention_norm = reader.norm(weights, "input_layernorm", hidden),
                    .attention = reader.attention(weights.select("self_attn")),
                    .rope = config().rope_layers.at(index),
                    .mlp_norm = reader.norm(weights, "post_attention_layernorm", hidden)};
  if (config().use_qk_norm && layer.rope) {  // behind the rope, and without weights
    layer.attention.query_norm =
        RmsNorm::unweighted(config().rms_norm_eps, layer.attention_norm.device());
    layer.attention.key_norm = layer.attention.query_norm;
  }
  if (config().experts.layers.at(index)) {
    layer.mlp = read_experts_block(mlp, config());
  } else {
    layer.mlp = reader.mlp(mlp);
  }
  return layer;
}

Llama4Text::Llama4Text(const ModelConfig& config, const StateDict& weights,
                       const LoadOptions& options)
    : CausalLM(config, options.dtype.value(), options.device),
      vocabulary_(Vocabulary::read(weights, config)) {
  const DecoderStyle style{.qkv_bias = config.attention_bias, .output_bias = config.attention_bias};
  const DecoderReader reader(config, style);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(read_layer(weights.select("model.layers." + std::to_string(i)),
                                 static_cast<std::size_t>(i), reader));
  }
  norm_ = reader.norm(weights.select("model"), "norm", config.hidden_size);
  weights.verify();
  rope_ = Rope(config.rope, config.head_dim, options.device);
}

// Queries of layers without rope grow with their position (https://arxiv.org/abs/2501.19399).
// Positions count real tokens, so that padding does not change a row.
at::Tensor Llama4Text::tuned(const at::Tensor& queries, const at::Tensor& positions) const {
  const TemperatureTuning& tuning = *config().temperature_tuning;
  const at::Tensor scale = positions.to(queries.device(), at::kFloat)
                               .add_(1)
                               .div_(tuning.floor_scale)
                               .floor_()
                               .log1p_()
                               .mul_(tuning.scale)
                               .add_(1);
  return queries.mul(scale.unsqueeze(-1).unsqueeze(-1)).to(queries.scalar_type());
}

at::Tensor Llama4Text::attend(const at::Tensor& hidden, std::int64_t index,
                              const Rotation& rotation, ForwardContext& context) const {
  const Llama4Layer& layer = layers_[static_cast<std::size_t>(index)];
  Heads heads = layer.attention.project(hidden, context);
  if (layer.rope) {
    heads.queries = rotate_interleaved(heads.queries, rotation);
    heads.keys = rotate_interleaved(heads.keys, rotation);
    if (layer.attention.query_norm) heads.queries = (*layer.attention.query_norm)(heads.queries);
    if (layer.attention.key_norm) heads.keys = (*layer.attention.key_norm)(heads.keys);
  } else if (config().temperature_tuning) {
    heads.queries = tuned(heads.queries, context.positions());
  }
  return layer.attention.attend(index, heads, context);
}

at::Tensor Llama4Text::hidden_states(const at::Tensor& ids, ForwardContext& context) const {
  at::Tensor hidden = vocabulary_.embed(ids);  // [batch * tokens, hidden_size] throughout
  Rotation rotation = rope_.at(context.positions(), at::kFloat, context.regimes());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Llama4Layer& layer = layers_[i];
    hidden = hidden.to(layer.attention_norm.device());
    rotation = rotation.to(hidden.device());
    hidden = hidden.add_(
        attend(layer.attention_norm(hidden), static_cast<std::int64_t>(i), rotation, context));
    const at::Tensor normed = layer.mlp_norm(hidden);
    hidden = hidden.add_(std::visit([&](const auto& mlp) { return mlp(normed); }, layer.mlp));
  }
  return norm_(hidden.to(norm_.device())).view({ids.size(0), ids.size(1), -1});
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  return std::make_unique<Llama4Text>(config, weights, options);
}

}  // namespace

void add_llama4_text(ModelRegistry& registry) { registry.add("llama4_text", {read_config, build}); }

}  // namespace kvcache::detail
