#include <string>

#include "kvcache/models/mamba_mixer.h"
#include "models/families.h"
#include "models/mamba_stack.h"
#include "models/recurrent_config.h"

namespace kvcache::detail {
namespace {

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_base_config(json, {.vocab_size = 50280,
                                               .hidden_size = 768,
                                               .num_hidden_layers = 32,
                                               .tie_word_embeddings = true,
                                               .bos_token_id = 0,
                                               .pad_token_id = 0,
                                               .eos_token_ids = {0}});
  config.rms_norm_eps = read_norm_eps(json, "layer_norm_epsilon", 1e-5);
  RecurrentConfig& sizes = config.recurrent;
  sizes.conv_kernel = read_kernel_size(json, "conv_kernel", 4);
  sizes.conv_bias = json.flag("use_conv_bias").value_or(true);
  sizes.projection_bias = json.flag("use_bias").value_or(false);
  sizes.wide_residual = json.flag("residual_in_fp32").value_or(true);
  sizes.inner_size =
      json.size("intermediate_size").value_or(read_inner_size(json, "expand", config.hidden_size));
  sizes.state_size = json.size("state_size", kMaxStateSize).value_or(16);
  sizes.time_step_rank = read_time_step_rank(json, "time_step_rank", config.hidden_size);
  sizes.states = channel_states(sizes);
  config.layer_types.assign(static_cast<std::size_t>(config.num_hidden_layers),
                            std::string(kLinearAttention));
  return config;
}

}  // namespace

void add_mamba(ModelRegistry& registry) {
  registry.add("mamba", {read_config, build_mamba<MambaMixer>});
}

}  // namespace kvcache::detail
