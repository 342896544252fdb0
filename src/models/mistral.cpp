#include <memory>

#include "kvcache/models/decoder.h"
#include "models/decoder_config.h"
#include "models/families.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kDefaultWindow = 4096;

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json, {.vocab_size = 32000,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 14336,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .num_key_value_heads = 8,
                                                  .max_position_embeddings = 4096 * 32,
                                                  .bos_token_id = 1,
                                                  .eos_token_ids = {2}});
  config.sliding_window = json.size("sliding_window");  // null: none
  if (!json.contains("sliding_window")) config.sliding_window = kDefaultWindow;
  config.layer_types =
      uniform_layer_types(json, config, config.sliding_window ? kSlidingAttention : kFullAttention);
  return config;
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  return std::make_unique<DecoderModel>(config, weights, options, DecoderStyle{});
}

}  // namespace

void add_mistral(ModelRegistry& registry) { registry.add("mistral", {read_config, build}); }

}  // namespace kvcache::detail
