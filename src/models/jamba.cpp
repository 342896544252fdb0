#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/experts.h"
#include "kvcache/models/mamba_mixer.h"
#include "kvcache/models/mixed_decoder.h"
#include "models/families.h"
#include "models/recurrent_config.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kMaxExperts = 65'536;

// Every `period`-th layer, from `offset` on, by the names of a config's fields.
struct Rhythm {
  std::int64_t period, offset;

  static Rhythm read(const ConfigReader& json, const std::string& kind, Rhythm fallback) {
    const Rhythm rhythm{json.size(kind + "_layer_period").value_or(fallback.period),
                        json.integer(kind + "_layer_offset").value_or(fallback.offset)};
    check_value(rhythm.offset >= 0 && rhythm.offset < rhythm.period,
                json.field(kind + "_layer_offset"), " is ", rhythm.offset,
                "; it must be from 0 to less than ", kind, "_layer_period, ", rhythm.period);
    return rhythm;
  }

  bool has(std::int64_t layer) const { return layer % period == offset; }
};

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json, {.vocab_size = 65536,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 14336,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .num_key_value_heads = 8,
                                                  .max_position_embeddings = 262144,
                                                  .bos_token_id = 1,
                                                  .pad_token_id = 0,
                                                  .eos_token_ids = {2}});
  RecurrentConfig& sizes = config.recurrent;
  sizes.conv_kernel = read_kernel_size(json, "mamba_d_conv", 4);
  sizes.conv_bias = json.flag("mamba_conv_bias").value_or(true);
  sizes.projection_bias = json.flag("mamba_proj_bias").value_or(false);
  sizes.inner_size = read_inner_size(json, "mamba_expand", config.hidden_size);
  sizes.state_size = json.size("mamba_d_state", kMaxStateSize).value_or(16);
  sizes.time_step_rank = read_time_step_rank(json, "mamba_dt_rank", config.hidden_size);
  sizes.states = channel_states(sizes);
  ExpertsConfig& experts = config.experts;
  experts.count = json.size("num_experts", kMaxExperts).value_or(16);
  experts.per_token = json.size("num_experts_per_tok", kMaxExperts).value_or(2);
  experts.intermediate_size = config.intermediate_size;
  const Rhythm attention = Rhythm::read(json, "attn", {8, 4});
  const Rhythm mixtures = Rhythm::read(json, "expert", {2, 1});
  check_value(experts.count == 1 || experts.per_token <= experts.count,
              json.field("num_experts_per_tok"), " is ", experts.per_token, ", but num_experts is ",
              experts.count);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    config.layer_types.emplace_back(attention.has(i) ? kFullAttention : kLinearAttention);
    experts.layers.push_back(experts.count > 1 && mixtures.has(i));
  }
  return config;
}

// Attention that knows of positions only what the layers before it left in the hidden states.
struct PlainAttention {
  AttentionBlock attention;

  static PlainAttention read(const StateDict& weights, const ModelConfig& config) {
    const std::int64_t hidden = config.hidden_size, dim = config.head_dim;
    const std::int64_t queries = config.num_attention_heads * dim;
    const std::int64_t keys = config.num_key_value_heads * dim;
    return {{.query = Linear::read(weights.select("q_proj"), {queries, hidden}),
             .key = Linear::read(weights.select("k_proj"), {keys, hidden}),
             .value = Linear::read(weights.select("v_proj"), {keys, hidden}),
             .output = Linear::read(weights.select("o_proj"), {hidden, queries}),
             .head_dim = dim}};
  }

  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const {
    return attention.attend(context.layer, attention.project(hidden, context.step), context.step);
  }
};

ExpertsBlock read_experts_block(const StateDict& weights, const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  return {.router = {.scores = Linear::read(weights.select("router"),
                                            {experts.count, config.hidden_size}),
                     .top_k = experts.per_token},
          .experts = read_experts(weights.select("experts"),
                                  {.experts = experts.count,
                                   .hidden = config.hidden_size,
                                   .inner = experts.intermediate_size},
                                  find_activation(config.hidden_act))};
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  MixedParts parts{.vocabulary = Vocabulary::read(weights, config)};
  const auto norm = [&](const StateDict& from, const char* name) {
    return RmsNorm(from.take(name, {config.hidden_size}), config.rms_norm_eps);
  };
  std::vector<std::pair<std::size_t, MambaMixer>> mixers;  // by layer
  for (std::size_t i = 0; i < config.layer_types.size(); ++i) {
    const StateDict layer = weights.select("model.layers." + std::to_string(i));
    MixedLayer made{.norm = norm(layer, "input_layernorm.weight"),
                    .mlp_norm = norm(layer, "pre_ff_layernorm.weight")};
    if (config.layer_types[i] == kFullAttention) {
      made.mixer = PlainAttention::read(layer.select("self_attn"), config);
    } else {
      mixers.emplace_back(i, MambaMixer::read(layer.select("mamba"), config, /*norms=*/true));
    }
    const StateDict mlp = layer.select("feed_forward");
    if (config.experts.layers[i]) {
      made.mlp = read_experts_block(mlp, config);
    } else {
      made.mlp =
          GatedMlp::read(mlp, {.hidden = config.hidden_size, .inner = config.intermediate_size},
                         find_activation(config.hidden_act));
    }
    parts.layers.push_back(std::move(made));
  }
  parts.norm = norm(weights, "model.final_layernorm.weight");
  weights.verify();
  for (auto& [layer, mixer] : mixers) {
    mixer.prepare();
    parts.layers[layer].mixer = std::move(mixer);
  }
  return std::make_unique<MixedDecoder>(config, options, std::move(parts));
}

}  // namespace

void add_jamba(ModelRegistry& registry) { registry.add("jamba", {read_config, build}); }

}  // namespace kvcache::detail
