#include <memory>
#include <optional>
#include <string>

#include "kvcache/core/errors.h"
#include "kvcache/models/decoder.h"
#include "models/decoder_config.h"
#include "models/families.h"
#include "models/gemma.h"

namespace kvcache::detail {
namespace {

constexpr double kGlobalTheta = 1'000'000;
constexpr double kLocalTheta = 10'000;
constexpr std::int64_t kFullEvery = 6;

// Full layers have a slow rope, which `rope_scaling` (the older name) stretches, sliding ones a
// fast one.
std::map<std::string, RopeConfig> read_ropes(const ConfigReader& json, const ModelConfig& config) {
  const std::optional<ConfigReader> given = json.object("rope_parameters");
  check_value(!given || !(given->contains("rope_type") || given->contains("rope_theta")),
              json.field("rope_parameters"),
              " must hold an object for each layer type of this family");
  const auto parameters = [&](std::string_view type) {
    return given ? given->object(type) : std::nullopt;
  };
  RopeConfig global{.theta = json.number("rope_theta").value_or(kGlobalTheta)};
  RopeConfig local{.theta = json.number("rope_local_base_freq").value_or(kLocalTheta)};
  global = read_rope_parameters(parameters(kFullAttention), config, global, {});
  global = read_rope_parameters(json.object("rope_scaling"), config, global, {});
  local = read_rope_parameters(parameters(kSlidingAttention), config, local, {});
  return {{std::string(kFullAttention), global}, {std::string(kSlidingAttention), local}};
}

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json,
                                           {.vocab_size = 262208,
                                            .hidden_size = 2304,
                                            .intermediate_size = 9216,
                                            .num_hidden_layers = 26,
                                            .num_attention_heads = 8,
                                            .num_key_value_heads = 4,
                                            .head_dim = 256,
                                            .max_position_embeddings = 131072,
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 2,
                                            .pad_token_id = 0,
                                            .eos_token_ids = {1}},
                                           {.by_layer_type = true});
  read_gemma(json, config);
  check_value(!read_softcap(json, "attn_logit_softcapping", std::nullopt),
              json.field("attn_logit_softcapping"),
              " is set, but gemma3 caps no attention scores; gemma2 does");
  config.final_logit_softcapping = read_softcap(json, "final_logit_softcapping", std::nullopt);
  config.layer_ropes = read_ropes(json, config);
  const std::int64_t every = json.size("sliding_window_pattern").value_or(kFullEvery);
  config.layer_types = read_layer_types(json, config, every_nth_full(config, every));
  return config;
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  DecoderStyle style = gemma_style(config);
  style.query_key_norm = true;
  return std::make_unique<DecoderModel>(config, weights, options, style);
}

}  // namespace

void add_gemma3_text(ModelRegistry& registry) { registry.add("gemma3_text", {read_config, build}); }

}  // namespace kvcache::detail
