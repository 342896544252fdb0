#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/causal_convolution.h"
#include "kvcache/models/mixed_decoder.h"
#include "models/families.h"
#include "models/recurrent_config.h"

namespace kvcache::detail {
namespace {

// The MLP's inner size: two thirds of what is given, times a factor, rounded up to a multiple.
std::int64_t adjusted_size(const ConfigReader& json, std::int64_t given) {
  if (!json.flag("block_auto_adjust_ff_dim").value_or(true)) return given;
  const std::int64_t size = 2 * given / 3;
  if (json.contains("block_ffn_dim_multiplier") && !json.number("block_ffn_dim_multiplier")) {
    return size;  // null: neither factor nor rounding
  }
  const double factor = json.number("block_ffn_dim_multiplier").value_or(1);
  const std::int64_t multiple = json.size("block_multiple_of").value_or(256);
  const double scaled = std::floor(factor * static_cast<double>(size));
  check_value(scaled >= 1 && scaled <= static_cast<double>(ConfigReader::kMaxSize),
              json.field("block_ffn_dim_multiplier"), " is ", factor, ", which makes MLPs of ",
              scaled);
  return (static_cast<std::int64_t>(scaled) + multiple - 1) / multiple * multiple;
}

std::vector<std::string> read_types(const ConfigReader& json, std::int64_t layers) {
  const auto count = static_cast<std::size_t>(layers);
  if (const auto types = json.texts("layer_types")) {
    check_value(types->size() == count, json.field("layer_types"), " has ", types->size(),
                " entries, but num_hidden_layers is ", layers);
    for (const std::string& type : *types) {
      check_value(type == kFullAttention || type == kConvolution, json.field("layer_types"),
                  " has '", type, "'; known for this family are ", kFullAttention, ", ",
                  kConvolution);
    }
    return *types;
  }
  const auto attention = json.integers("full_attn_idxs");
  if (!attention) return std::vector<std::string>(count, std::string(kFullAttention));
  std::vector<std::string> types(count, std::string(kConvolution));
  for (const std::int64_t layer : *attention) {
    if (layer >= 0 && layer < layers) types[static_cast<std::size_t>(layer)] = kFullAttention;
  }
  return types;
}

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json, {.vocab_size = 65536,
                                                  .hidden_size = 2560,
                                                  .intermediate_size = 12288,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .num_key_value_heads = 8,
                                                  .max_position_embeddings = 128000,
                                                  .tie_word_embeddings = true,
                                                  .rope = {.theta = 1'000'000},
                                                  .bos_token_id = 1,
                                                  .pad_token_id = 0,
                                                  .eos_token_ids = {2}});
  config.rms_norm_eps = read_norm_eps(json, "norm_eps", 1e-5);
  config.hidden_act = "silu";
  config.intermediate_size =
      adjusted_size(json, json.size("block_ff_dim").value_or(config.intermediate_size));
  config.tie_word_embeddings = json.flag("tie_embedding").value_or(config.tie_word_embeddings);
  RecurrentConfig& sizes = config.recurrent;
  sizes.conv_kernel = read_kernel_size(json, "conv_L_cache", 3);
  sizes.conv_bias = json.flag("conv_bias").value_or(false);
  sizes.states = StateSizes{.convolutions = {{config.hidden_size, sizes.conv_kernel}}};
  config.layer_types = read_types(json, config.num_hidden_layers);
  return config;
}

// A convolution between two gates.
struct ShortConvolution {
  Linear in;  // hidden -> gates before and behind the convolution, inputs
  CausalConvolution convolution;
  Linear out;

  static ShortConvolution read(const StateDict& weights, const ModelConfig& config) {
    const std::int64_t hidden = config.hidden_size;
    const bool bias = config.recurrent.conv_bias;
    return {Linear::read(weights.select("in_proj"), {3 * hidden, hidden, bias}),
            CausalConvolution::read(weights.select("conv"),
                                    {hidden, config.recurrent.conv_kernel, bias}),
            Linear::read(weights.select("out_proj"), {hidden, hidden, bias})};
  }

  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const {
    const std::vector<at::Tensor> parts =
        in(hidden).unflatten(0, {context.batch(), context.tokens()}).chunk(3, -1);
    const at::Tensor mixed = convolution(parts[0].mul(parts[2]), context).mul(parts[1]);
    return out(mixed.reshape({-1, hidden.size(1)}));
  }
};

AttentionBlock read_attention(const StateDict& weights, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, dim = config.head_dim;
  const std::int64_t queries = config.num_attention_heads * dim;
  const std::int64_t keys = config.num_key_value_heads * dim;
  const auto norm = [&](const char* name) {
    return RmsNorm(weights.take(name, {dim}), config.rms_norm_eps);
  };
  return {.query = Linear::read(weights.select("q_proj"), {queries, hidden}),
          .key = Linear::read(weights.select("k_proj"), {keys, hidden}),
          .value = Linear::read(weights.select("v_proj"), {keys, hidden}),
          .output = Linear::read(weights.select("out_proj"), {hidden, queries}),
          .query_norm = norm("q_layernorm.weight"),
          .key_norm = norm("k_layernorm.weight"),
          .head_dim = dim};
}

GatedMlp read_mlp(const StateDict& weights, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  return {.gate = Linear::read(weights.select("w1"), {inner, hidden}),
          .up = Linear::read(weights.select("w3"), {inner, hidden}),
          .down = Linear::read(weights.select("w2"), {hidden, inner}),
          .activation = find_activation(config.hidden_act)};
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  MixedParts parts{.vocabulary = Vocabulary::read(weights, config)};
  const auto norm = [&](const StateDict& from, const char* name) {
    return RmsNorm(from.take(name, {config.hidden_size}), config.rms_norm_eps);
  };
  for (std::size_t i = 0; i < config.layer_types.size(); ++i) {
    const StateDict layer = weights.select("model.layers." + std::to_string(i));
    MixedLayer made{.norm = norm(layer, "operator_norm.weight"),
                    .mlp_norm = norm(layer, "ffn_norm.weight"),
                    .mlp = read_mlp(layer.select("feed_forward"), config)};
    if (config.layer_types[i] == kFullAttention) {
      made.mixer = RotaryAttention{read_attention(layer.select("self_attn"), config)};
    } else {
      made.mixer = ShortConvolution::read(layer.select("conv"), config);
    }
    parts.layers.push_back(std::move(made));
  }
  parts.norm = norm(weights, "model.embedding_norm.weight");
  weights.verify();
  parts.rope = Rope(config.rope, config.head_dim, options.device);
  return std::make_unique<MixedDecoder>(config, options, std::move(parts));
}

}  // namespace

void add_lfm2(ModelRegistry& registry) { registry.add("lfm2", {read_config, build}); }

}  // namespace kvcache::detail
