#include <memory>

#include "kvcache/models/decoder.h"
#include "models/decoder_config.h"
#include "models/families.h"

namespace kvcache::detail {
namespace {

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json, {.vocab_size = 151936,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 22016,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .num_key_value_heads = 32,
                                                  .max_position_embeddings = 32768});
  read_optional_windows(json, config);
  return config;
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  return std::make_unique<DecoderModel>(config, weights, options, DecoderStyle{.qkv_bias = true});
}

}  // namespace

void add_qwen2(ModelRegistry& registry) { registry.add("qwen2", {read_config, build}); }

}  // namespace kvcache::detail
