// The configs of families with attention layers beyond llama's: defaults, older files, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/configs.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

const std::string kFull(kFullAttention), kSliding(kSlidingAttention), kChunked(kChunkedAttention);

TEST(Gemma2Config, Defaults) {
  const ModelConfig config = config_with("gemma2", R"("hidden_act": "relu")");
  EXPECT_EQ(config.vocab_size, 256000);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.hidden_act, "gelu_pytorch_tanh");  // hidden_activation alone counts
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.query_pre_attn_scalar, 256);
  EXPECT_EQ(config.attn_logit_softcapping, 50);
  EXPECT_EQ(config.final_logit_softcapping, 30);
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_EQ(config.layer_types.at(0), kSliding);
  EXPECT_EQ(config.layer_types.at(1), kFull);
  EXPECT_EQ(config.eos_token_ids, std::vector<std::int64_t>{1});
  EXPECT_EQ(config.pad_token_id, 0);
}

TEST(Gemma2Config, CapsMayBeSwitchedOff) {
  const ModelConfig config =
      config_with("gemma2", R"("attn_logit_softcapping": null, "final_logit_softcapping": null)");
  EXPECT_FALSE(config.attn_logit_softcapping.has_value());
  EXPECT_FALSE(config.final_logit_softcapping.has_value());
}

TEST(Gemma2Config, WhatIsRefused) {
  EXPECT_THAT(config_refusal("gemma2", R"("final_logit_softcapping": 0)"),
              HasSubstr("final_logit_softcapping is 0"));
  EXPECT_THAT(config_refusal("gemma2", R"("use_bidirectional_attention": true)"),
              HasSubstr("use_bidirectional_attention is true"));
  EXPECT_THAT(config_refusal("gemma2", R"("sliding_window": null)"),
              HasSubstr("no sliding_window is in force"));
  EXPECT_THAT(config_refusal("gemma2", R"("query_pre_attn_scalar": 0)"),
              HasSubstr("query_pre_attn_scalar is 0"));
  EXPECT_THAT(config_refusal("gemma2", R"("hidden_activation": "snake")"), HasSubstr("'snake'"));
}

TEST(Gemma3TextConfig, DefaultsHaveTwoRopes) {
  const ModelConfig config = config_with("gemma3_text", R"("num_hidden_layers": 7)");
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.layer_types, (std::vector<std::string>{kSliding, kSliding, kSliding, kSliding,
                                                          kSliding, kFull, kSliding}));
  EXPECT_EQ(config.layer_ropes.at(kFull).theta, 1'000'000);
  EXPECT_EQ(config.layer_ropes.at(kSliding).theta, 10'000);
  EXPECT_FALSE(config.final_logit_softcapping.has_value());
}

TEST(Gemma3TextConfig, RopesInBothStyles) {
  const ModelConfig old_style = config_with(
      "gemma3_text", R"("rope_theta": 500, "rope_local_base_freq": 50, "sliding_window_pattern": 2,
                        "rope_scaling": {"rope_type": "linear", "factor": 8})");
  EXPECT_EQ(old_style.layer_types.at(1), kFull);
  EXPECT_EQ(old_style.layer_ropes.at(kFull).theta, 500);
  EXPECT_EQ(old_style.layer_ropes.at(kFull).factor, 8);
  EXPECT_EQ(old_style.layer_ropes.at(kFull).type, "linear");
  EXPECT_EQ(old_style.layer_ropes.at(kSliding).theta, 50);
  EXPECT_EQ(old_style.layer_ropes.at(kSliding).type, "default");

  const ModelConfig new_style = config_with("gemma3_text", R"("rope_parameters": {
      "full_attention": {"rope_type": "dynamic", "factor": 2},
      "sliding_attention": {"rope_theta": 7}})");
  EXPECT_EQ(new_style.layer_ropes.at(kFull).type, "dynamic");
  EXPECT_EQ(new_style.layer_ropes.at(kFull).theta, 1'000'000);
  EXPECT_EQ(new_style.layer_ropes.at(kFull).original_max_position_embeddings, 131072);
  EXPECT_EQ(new_style.layer_ropes.at(kSliding).theta, 7);
}

TEST(Gemma3TextConfig, WhatIsRefused) {
  EXPECT_THAT(config_refusal("gemma3_text", R"("rope_parameters": {"rope_type": "default"})"),
              HasSubstr("must hold an object for each layer type"));
  EXPECT_THAT(config_refusal("gemma3_text", R"("attn_logit_softcapping": 50)"),
              HasSubstr("gemma3 caps no attention scores"));
}

TEST(Phi3Config, LongropeKnowsItsOriginalLength) {
  const std::string factors =
      R"("rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [2]})";
  const ModelConfig config =
      config_with("phi3", factors + R"(, "max_position_embeddings": 131072)");
  EXPECT_EQ(config.rope.type, "longrope");
  EXPECT_EQ(config.rope.original_max_position_embeddings, 4096);
  EXPECT_NEAR(config.rope.attention_factor, 1.190238, 1e-6);  // sqrt(1 + log(32) / log(4096))
  EXPECT_EQ(config_with("phi3", factors + R"(, "original_max_position_embeddings": 512)")
                .rope.original_max_position_embeddings,
            512);
  EXPECT_EQ(config.layer_types.at(0), kFull);
  EXPECT_EQ(config.num_key_value_heads, 32);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
}

TEST(Phi3Config, WindowsAndPartsOfHeads) {
  const ModelConfig config =
      config_with("phi3", R"("sliding_window": 2047, "partial_rotary_factor": 0.75)");
  EXPECT_EQ(config.layer_specs().at(0).type, kSliding);
  EXPECT_EQ(config.layer_specs().at(0).window, 2047);
  EXPECT_EQ(config.rope.partial_rotary_factor, 0.75);
  EXPECT_THAT(config_refusal("phi3", R"("rope_parameters": {"partial_rotary_factor": 1.5})"),
              HasSubstr("partial_rotary_factor is 1.5"));
}

TEST(Llama4TextConfig, Defaults) {
  const ModelConfig config = config_with("llama4_text", R"("num_hidden_layers": 5)");
  EXPECT_EQ(layer_types_of(config),
            (std::vector<std::string>{kChunked, kChunked, kChunked, kFull, kChunked}));
  EXPECT_EQ(config.attention_chunk_size, 8192);
  EXPECT_EQ(config.rope.theta, 500'000);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.intermediate_size, 16384);
  EXPECT_EQ(config.experts.intermediate_size, 8192);
  EXPECT_EQ(config.experts.count, 16);
  EXPECT_EQ(config.experts.per_token, 1);
  EXPECT_EQ(config.experts.layers, std::vector<bool>(5, true));
  EXPECT_EQ(config.rope_layers, (std::vector<bool>{true, true, true, false, true}));
  EXPECT_TRUE(config.use_qk_norm);
  EXPECT_EQ(config.temperature_tuning.value().floor_scale, 8192);
}

TEST(Llama4TextConfig, LayersMayBeListed) {
  const ModelConfig config = config_with("llama4_text", R"("num_hidden_layers": 4,
      "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0, 0, 1], "attention_chunk_size": 16,
      "attn_temperature_tuning": false, "head_dim": null)");
  EXPECT_EQ(config.experts.layers, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(layer_types_of(config), (std::vector<std::string>{kChunked, kFull, kFull, kChunked}));
  EXPECT_EQ(config.layer_specs().at(0).window, 16);
  EXPECT_FALSE(config.temperature_tuning.has_value());
  EXPECT_EQ(config.head_dim, 128);  // 5120 / 40
  const ModelConfig full =
      config_with("llama4_text",
                  R"("num_hidden_layers": 4, "attention_chunk_size": null, "moe_layers": [0, 3])");
  EXPECT_EQ(full.layer_types, std::vector<std::string>(4, kFull));
  EXPECT_EQ(full.experts.layers, (std::vector<bool>{true, false, false, true}));
}

TEST(Llama4TextConfig, WhatIsRefused) {
  const std::string two = R"("num_hidden_layers": 2, )";
  EXPECT_THAT(config_refusal("llama4_text", two + R"("moe_layers": [2])"),
              HasSubstr("moe_layers has 2, but the layers are 0 to 1"));
  EXPECT_THAT(config_refusal("llama4_text", two + R"("no_rope_layers": [1])"),
              HasSubstr("no_rope_layers has 1 entries"));
  EXPECT_THAT(config_refusal("llama4_text", two + R"("num_experts_per_tok": 17)"),
              HasSubstr("num_experts_per_tok is 17"));
  EXPECT_THAT(config_refusal("llama4_text",
                             two + R"("layer_types": ["sliding_attention", "full_attention"])"),
              HasSubstr("known for this family are full_attention, chunked_attention"));
}

}  // namespace
}  // namespace kvcache::testing
