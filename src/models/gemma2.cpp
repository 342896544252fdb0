#include <cmath>
#include <memory>

#include "kvcache/core/errors.h"
#include "kvcache/models/activations.h"
#include "kvcache/models/decoder.h"
#include "models/decoder_config.h"
#include "models/families.h"
#include "models/gemma.h"

namespace kvcache::detail {

void read_gemma(const ConfigReader& json, ModelConfig& config) {
  config.hidden_act = json.text("hidden_activation").value_or("gelu_pytorch_tanh");
  find_activation(config.hidden_act);  // throws, listing the known ones
  config.attention_bias = json.flag("attention_bias").value_or(false);
  const double scalar = json.number("query_pre_attn_scalar").value_or(256);
  check_value(scalar > 0, json.field("query_pre_attn_scalar"), " is ", scalar,
              "; it must be above 0");
  config.query_pre_attn_scalar = scalar;
  check_value(!json.flag("use_bidirectional_attention").value_or(false),
              json.field("use_bidirectional_attention"),
              " is true; a model that sees later tokens cannot generate with a cache");
  config.sliding_window = json.size("sliding_window");  // null: none
  if (!json.contains("sliding_window")) config.sliding_window = 4096;
}

std::vector<std::string> every_nth_full(const ModelConfig& config, std::int64_t n) {
  std::vector<std::string> types;
  for (std::int64_t layer = 1; layer <= config.num_hidden_layers; ++layer) {
    types.emplace_back(layer % n == 0 ? kFullAttention : kSlidingAttention);
  }
  return types;
}

DecoderStyle gemma_style(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .zero_centered_norms = true,
          .sandwich_norms = true,
          .embedding_scale = std::sqrt(static_cast<double>(config.hidden_size))};
}

namespace {

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json, {.vocab_size = 256000,
                                                  .hidden_size = 2304,
                                                  .intermediate_size = 9216,
                                                  .num_hidden_layers = 26,
                                                  .num_attention_heads = 8,
                                                  .num_key_value_heads = 4,
                                                  .head_dim = 256,
                                                  .max_position_embeddings = 8192,
                                                  .tie_word_embeddings = true,
                                                  .bos_token_id = 2,
                                                  .pad_token_id = 0,
                                                  .eos_token_ids = {1}});
  read_gemma(json, config);
  config.attn_logit_softcapping = read_softcap(json, "attn_logit_softcapping", 50);
  config.final_logit_softcapping = read_softcap(json, "final_logit_softcapping", 30);
  config.layer_types = read_layer_types(json, config, every_nth_full(config, 2));
  return config;
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  return std::make_unique<DecoderModel>(config, weights, options, gemma_style(config));
}

}  // namespace

void add_gemma2(ModelRegistry& registry) { registry.add("gemma2", {read_config, build}); }

}  // namespace kvcache::detail
