#include <memory>

#include "kvcache/core/errors.h"
#include "kvcache/models/decoder.h"
#include "models/decoder_config.h"
#include "models/families.h"

namespace kvcache::detail {
namespace {

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json, {.vocab_size = 32000,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 11008,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .max_position_embeddings = 2048,
                                                  .bos_token_id = 1,
                                                  .eos_token_ids = {2}});
  config.attention_bias = json.flag("attention_bias").value_or(false);
  config.mlp_bias = json.flag("mlp_bias").value_or(false);
  check_value(!json.size("sliding_window"), json.field("sliding_window"),
              " is set, but llama has no sliding layers; mistral has");
  config.layer_types = uniform_layer_types(json, config, kFullAttention);
  return config;
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  return std::make_unique<DecoderModel>(config, weights, options,
                                        DecoderStyle{.qkv_bias = config.attention_bias,
                                                     .output_bias = config.attention_bias,
                                                     .mlp_bias = config.mlp_bias});
}

}  // namespace

void add_llama(ModelRegistry& registry) { registry.add("llama", {read_config, build}); }

}  // namespace kvcache::detail
