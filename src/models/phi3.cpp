#include <memory>

#include "kvcache/models/decoder.h"
#include "models/decoder_config.h"
#include "models/families.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kOriginalLength = 4096;  // tokens

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json,
                                           {.vocab_size = 32064,
                                            .hidden_size = 3072,
                                            .intermediate_size = 8192,
                                            .num_hidden_layers = 32,
                                            .num_attention_heads = 32,
                                            .max_position_embeddings = 4096,
                                            .rms_norm_eps = 1e-5,
                                            .bos_token_id = 1,
                                            .pad_token_id = 32000,
                                            .eos_token_ids = {32000}},
                                           {.partial = true,
                                            .longrope_names = true,
                                            .original_max_position_embeddings = kOriginalLength});
  config.sliding_window = json.size("sliding_window");  // absent or null: none
  config.layer_types =
      uniform_layer_types(json, config, config.sliding_window ? kSlidingAttention : kFullAttention);
  return config;
}

// Its fused projections are told by their names in the file.
std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  return std::make_unique<DecoderModel>(config, weights, options, DecoderStyle{});
}

}  // namespace

void add_phi3(ModelRegistry& registry) { registry.add("phi3", {read_config, build}); }

}  // namespace kvcache::detail
