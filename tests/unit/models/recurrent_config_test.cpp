// config.json of families with recurrent states: defaults, derived sizes, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/config_reader.h"
#include "kvcache/models/registry.h"
#include "tests/support/refusal.h"

namespace kvcache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig read(const std::string& type, const std::string& fields = "\"vocab_size\": 64") {
  return model_families().find(type).read_config(
      ConfigReader::from_text("{" + fields + "}", "config.json"));
}

std::string refused(const std::string& type, const std::string& fields) {
  return refusal<ValueError>([&] { read(type, fields); });
}

TEST(RecurrentConfigs, MambasDefaultsAreTransformers) {
  const ModelConfig config = read("mamba");
  EXPECT_EQ(config.hidden_size, 768);
  EXPECT_EQ(config.recurrent.inner_size, 1536);
  EXPECT_EQ(config.recurrent.time_step_rank, 48);
  EXPECT_EQ(config.recurrent.state_size, 16);
  EXPECT_EQ(config.recurrent.conv_kernel, 4);
  EXPECT_TRUE(config.recurrent.conv_bias);
  EXPECT_FALSE(config.recurrent.projection_bias);
  EXPECT_TRUE(config.recurrent.wide_residual);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  const LayerSpec layer{.type = "linear_attention",
                        .state_sizes = StateSizes{.convolutions = {{.channels = 1536, .taps = 4}},
                                                  .recurrences = {{.shape = {1536, 16}}}}};
  EXPECT_EQ(config.layer_specs(), std::vector<LayerSpec>(32, layer));
}

TEST(RecurrentConfigs, ARankMayBeAutomatic) {
  EXPECT_EQ(
      read("mamba", R"("hidden_size": 40, "time_step_rank": "auto")").recurrent.time_step_rank, 3);
  EXPECT_EQ(read("jamba", R"("hidden_size": 64, "mamba_dt_rank": 7)").recurrent.time_step_rank, 7);
  EXPECT_THAT(refused("mamba", R"("time_step_rank": "half")"),
              HasSubstr("config.json: time_step_rank is 'half'"));
}

TEST(RecurrentConfigs, TimeStepsAreLimitedToInfinityInBothSpellings) {
  EXPECT_TRUE(std::isinf(read("mamba2").recurrent.largest_time_step));
  for (const std::string infinity : {R"({"__float__": "Infinity"})", "Infinity"}) {
    const ModelConfig config =
        read("mamba2", R"("bos_token": "\"Infinity", "time_step_limit": [0.25, )" + infinity + "]");
    EXPECT_EQ(config.recurrent.least_time_step, 0.25);
    EXPECT_TRUE(std::isinf(config.recurrent.largest_time_step));
  }
  EXPECT_EQ(read("mamba2", R"("time_step_limit": [0, 0.5])").recurrent.largest_time_step, 0.5);
  EXPECT_THAT(refused("mamba2", R"("time_step_limit": [0.5, 0.1])"), HasSubstr("time_step_limit"));
  EXPECT_THAT(refused("mamba2", R"("time_step_limit": [0, "1"])"), HasSubstr("a list of numbers"));
}

TEST(RecurrentConfigs, Mamba2sHeadsFillItsChannels) {
  EXPECT_THAT(refused("mamba2", R"("hidden_size": 32, "num_heads": 4, "head_dim": 8)"),
              HasSubstr("expand * hidden_size, 64"));
  EXPECT_THAT(refused("mamba2", R"("n_groups": 7)"), HasSubstr("a multiple of it"));
}

TEST(RecurrentConfigs, Lfm2DerivesLayersAndTheMlp) {
  const std::string small = R"("num_hidden_layers": 3, )";
  EXPECT_THAT(read("lfm2", small + R"("full_attn_idxs": [1])").layer_types,
              ElementsAre("conv", "full_attention", "conv"));
  EXPECT_THAT(read("lfm2", small + R"("vocab_size": 64)").layer_types,
              ElementsAre("full_attention", "full_attention", "full_attention"));
  EXPECT_EQ(read("lfm2").intermediate_size, 8192);
  EXPECT_EQ(read("lfm2", R"("block_ff_dim": 1000, "block_multiple_of": 100)").intermediate_size,
            700);
  EXPECT_EQ(read("lfm2", R"("block_auto_adjust_ff_dim": false)").intermediate_size, 12288);
  EXPECT_THAT(refused("lfm2", small + R"("layer_types": ["conv", "conv", "linear_attention"])"),
              HasSubstr("known for this family are full_attention, conv"));
}

TEST(RecurrentConfigs, JambaCountsItsAttentionAndExperts) {
  const ModelConfig config = read("jamba", R"("num_hidden_layers": 4, "attn_layer_period": 3,
      "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1)");
  EXPECT_THAT(config.layer_types, ElementsAre("linear_attention", "full_attention",
                                              "linear_attention", "linear_attention"));
  EXPECT_THAT(config.experts.layers, ElementsAre(false, true, false, true));
  EXPECT_THAT(refused("jamba", R"("attn_layer_period": 3, "attn_layer_offset": 3)"),
              HasSubstr("attn_layer_offset is 3"));
  EXPECT_THAT(refused("jamba", R"("num_experts": 2, "num_experts_per_tok": 3)"),
              HasSubstr("num_experts is 2"));
}

TEST(RecurrentConfigs, Qwen3NextMixesLayersExpertsAndTurnedShares) {
  const ModelConfig config =
      read("qwen3_next", R"("num_hidden_layers": 4, "mlp_only_layers": [1])");
  EXPECT_THAT(config.layer_types, ElementsAre("linear_attention", "linear_attention",
                                              "linear_attention", "full_attention"));
  EXPECT_THAT(config.experts.layers, ElementsAre(true, false, true, true));
  EXPECT_EQ(config.rope.partial_rotary_factor, 0.25);
  EXPECT_EQ(config.layer_specs()[0].kv_heads, 0);
  EXPECT_EQ(config.layer_specs()[3].kv_heads, 2);
  EXPECT_THAT(read("qwen3_next", R"("num_hidden_layers": 1, "num_experts": 0)").experts.layers,
              ElementsAre(false));
  EXPECT_THAT(refused("qwen3_next", R"("linear_num_value_heads": 24)"),
              HasSubstr("a multiple of linear_num_key_heads, 16"));
}

TEST(RecurrentConfigs, AConvolutionNeedsTwoTaps) {
  EXPECT_THAT(refused("lfm2", R"("conv_L_cache": 1)"), HasSubstr("at least 2 taps"));
}

}  // namespace
}  // namespace kvcache::testing
