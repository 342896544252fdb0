#include "kvcache/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvcache/core/errors.h"
#include "kvcache/models/registry.h"
#include "tests/support/configs.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto with = testing::config_with;
constexpr auto refusal = testing::config_refusal;
constexpr auto types_of = testing::layer_types_of;

TEST(ModelConfig, AbsentFieldsGetTheFamilysDefaults) {
  const ModelConfig llama = with("llama", "");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_key_value_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_ids, std::vector<std::int64_t>{2});
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_EQ(llama.rope.theta, 10000);
  EXPECT_FALSE(llama.dtype.has_value());

  const ModelConfig mistral = with("mistral", "");
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_EQ(mistral.layer_specs()[0].type, kSlidingAttention);

  const ModelConfig qwen2 = with("qwen2", "");
  EXPECT_EQ(qwen2.num_key_value_heads, 32);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_FALSE(qwen2.sliding_window.has_value());
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_FALSE(qwen2.bos_token_id.has_value());

  EXPECT_EQ(with("qwen3", R"("hidden_size": 2048)").head_dim, 128);
}

TEST(ModelConfig, NullKeyValueHeadsMeansAsManyAsHeads) {
  EXPECT_EQ(with("mistral", R"("num_attention_heads": 16, "num_key_value_heads": null)")
                .num_key_value_heads,
            16);
  EXPECT_EQ(with("llama", R"("num_attention_heads": 16)").num_key_value_heads, 16);
}

TEST(ModelConfig, RopeInBothStyles) {
  const ModelConfig old_style =
      with("llama", R"("rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 4})");
  EXPECT_EQ(old_style.rope.type, "linear");
  EXPECT_EQ(old_style.rope.theta, 5000);
  EXPECT_EQ(old_style.rope.factor, 4);

  const ModelConfig new_style = with("llama", R"("max_position_embeddings": 512, "rope_parameters":
      {"rope_type": "llama3", "rope_theta": 7.5, "factor": 8, "low_freq_factor": 1,
       "high_freq_factor": 4})");
  EXPECT_EQ(new_style.rope.type, "llama3");
  EXPECT_EQ(new_style.rope.theta, 7.5);
  EXPECT_EQ(new_style.rope.original_max_position_embeddings, 512);  // where none is given

  EXPECT_EQ(with("llama", R"("rope_scaling": null, "rope_theta": 3)").rope.theta, 3);
}

TEST(ModelConfig, WindowsOfQwen) {
  const std::string four = R"("num_hidden_layers": 4, "sliding_window": 7, )";
  const std::string full(kFullAttention), sliding(kSlidingAttention);
  EXPECT_EQ(types_of(with("qwen2", four + R"("max_window_layers": 3, "use_sliding_window": true)")),
            (std::vector<std::string>{full, full, full, sliding}));
  EXPECT_EQ(types_of(with("qwen2", four + R"("max_window_layers": 1)")),
            (std::vector<std::string>(4, full)));
  const ModelConfig listed =
      with("qwen3", four + R"("use_sliding_window": true, "layer_types": ["sliding_attention",
           "full_attention", "full_attention", "sliding_attention"])");
  EXPECT_EQ(types_of(listed), (std::vector<std::string>{sliding, full, full, sliding}));
  EXPECT_EQ(listed.layer_specs()[0].window, 7);
  EXPECT_EQ(listed.layer_specs()[1].window, 0);
}

TEST(ModelConfig, TokenIdsMayBeOneOrMany) {
  EXPECT_EQ(with("llama", R"("eos_token_id": [5, 6])").eos_token_ids,
            (std::vector<std::int64_t>{5, 6}));
  EXPECT_EQ(with("llama", R"("eos_token_id": 5)").eos_token_ids, std::vector<std::int64_t>{5});
  EXPECT_TRUE(with("llama", R"("eos_token_id": null)").eos_token_ids.empty());
  EXPECT_FALSE(with("llama", R"("pad_token_id": -1)").pad_token_id.has_value());
  EXPECT_EQ(with("llama", R"("pad_token_id": 0)").pad_token_id, 0);
}

TEST(ModelConfig, DtypeUnderBothNames) {
  EXPECT_EQ(with("llama", R"("torch_dtype": "bfloat16")").dtype, at::kBFloat16);
  EXPECT_EQ(with("llama", R"("dtype": "float16")").dtype, at::kHalf);
  EXPECT_THAT(refusal("llama", R"("dtype": "int8")"), HasSubstr("bfloat16"));
}

TEST(ModelConfig, UnknownKindsListTheKnownOnes) {
  EXPECT_THAT(refusal("gpt17", ""),
              AllOf(HasSubstr("'gpt17'"), HasSubstr("llama, "), HasSubstr("mistral, phi3, qwen2")));
  EXPECT_THAT(refusal("llama", R"("rope_scaling": {"type": "wavy"})"),
              AllOf(HasSubstr("rope_scaling.type is 'wavy'"),
                    HasSubstr("default, linear, dynamic, yarn, longrope, llama3")));
  EXPECT_THAT(refusal("llama", R"("hidden_act": "snake")"),
              AllOf(HasSubstr("'snake'"), HasSubstr("gelu, "), HasSubstr("silu")));
  EXPECT_THAT(refusal("qwen2", R"("num_hidden_layers": 1, "layer_types": ["mamba"])"),
              AllOf(HasSubstr("layer_types has 'mamba'"), HasSubstr("full_attention")));
}

TEST(ModelConfig, BadValuesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"("vocab_size": "many")", "config.json: vocab_size is \"many\"; it must be an integer"},
      {R"("vocab_size": 1.5)", "vocab_size is 1.5"},
      {R"("vocab_size": 0)", "vocab_size is 0"},
      {R"("hidden_size": -4096)", "hidden_size is -4096"},
      {R"("hidden_size": 18446744073709551615)", "hidden_size"},
      {R"("num_hidden_layers": 1000000000)", "num_hidden_layers"},
      {R"("num_attention_heads": 32, "num_key_value_heads": 5)", "num_key_value_heads, 5"},
      {R"("hidden_size": 100)", "hidden_size is 100"},
      {R"("head_dim": 7)", "head_dim is 7"},
      {R"("head_dim": 2147483648)", "head_dim is 2147483648; it must be from 1 to 65536"},
      {R"("hidden_size": 2147483646, "num_attention_heads": 2)", "heads of 1073741823"},
      {R"("rms_norm_eps": -1)", "rms_norm_eps is -1"},
      {R"("rms_norm_eps": 1e39)", "rms_norm_eps is 1e+39; it must be from 0 to"},
      {R"("rms_norm_eps": [])", "rms_norm_eps is []"},
      {R"("tie_word_embeddings": "yes")", "tie_word_embeddings is \"yes\""},
      {R"("rope_theta": 0)", "rope_theta is 0"},
      {R"("rope_parameters": 5)", "rope_parameters is 5; it must be an object"},
      {R"("rope_parameters": {"rope_type": "linear"})", "rope_parameters.factor is missing"},
      {R"("rope_parameters": {"rope_type": "linear", "factor": 0})", "factor is 0"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
      {R"("rope_parameters": {"full_attention": {}})", "per layer type"},
      {R"("rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
          "high_freq_factor": 4})",
       "high_freq_factor is 4"},
      {R"("rope_parameters": {"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2})",
       "beta_fast is 1; it must be at least beta_slow, 2"},
      {R"("rope_parameters": {"rope_type": "dynamic", "factor": 0.5})", "factor is 0.5"},
      {R"("rope_parameters": {"rope_type": "longrope", "long_factor": [1]})",
       "short_factor must be a list of numbers above 0"},
      {R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, "a"]})",
       "short_factor is [1,\"a\"]; it must be a list of finite numbers"},
      {R"("eos_token_id": ["a"])", "eos_token_id"},
      {R"("sliding_window": 8)", "llama has no sliding layers"},
      {R"("num_hidden_layers": 2, "layer_types": ["full_attention"])", "layer_types has 1 entries"},
      {R"("layer_types": "full")", "layer_types is \"full\"; it must be a list of strings"},
  };
  for (const auto& [fields, message] : cases) {
    EXPECT_THAT(refusal("llama", fields), HasSubstr(message)) << fields;
  }
  EXPECT_THAT(refusal("qwen2", R"("num_hidden_layers": 1, "layer_types": ["sliding_attention"])"),
              HasSubstr("no sliding_window"));
  EXPECT_THAT(refusal("mistral", R"("num_hidden_layers": 1, "layer_types": ["full_attention"])"),
              HasSubstr("must say sliding_attention"));
}

TEST(ModelConfig, FilesThatAreNotAConfig) {
  EXPECT_THROW(ConfigReader::from_text("[]", "config.json"), ValueError);
  EXPECT_THROW(ConfigReader::from_text("{", "config.json"), ValueError);
  EXPECT_THROW(ModelConfig::from_folder("/no/such/folder"), ValueError);
}

TEST(ModelConfig, LayerSpecsNeedTheirWindow) {
  ModelConfig config{.layer_types = {std::string(kChunkedAttention)}};
  EXPECT_THROW(config.layer_specs(), ValueError);
  config.attention_chunk_size = 8;
  EXPECT_EQ(config.layer_specs()[0].window, 8);
  config.layer_types = {std::string(kHybridSliding)};
  EXPECT_THROW(config.layer_specs(), ValueError);
  config.sliding_window = 6;
  EXPECT_EQ(config.layer_specs()[0].window, 6);
}

TEST(ModelConfig, LayerSpecsSayHowLargeTheyAre) {
  const StateSizes states{.convolutions = {{.channels = 4, .taps = 3}}};
  const ModelConfig config{
      .num_key_value_heads = 2,
      .head_dim = 8,
      .recurrent = {.states = states},
      .layer_types = {std::string(kFullAttention), std::string(kHybrid), std::string(kConvolution)},
  };
  const std::vector<LayerSpec> specs = config.layer_specs();
  EXPECT_EQ(specs[0].kv_heads * specs[0].key_dim * specs[0].value_dim, 2 * 8 * 8);
  EXPECT_EQ(specs[1].kv_heads * specs[1].key_dim * specs[1].value_dim, 2 * 8 * 8);
  EXPECT_EQ(specs[2].kv_heads + specs[2].key_dim + specs[2].value_dim, 0);
  EXPECT_EQ(specs[0].state_sizes, std::nullopt);
  EXPECT_EQ(specs[1].state_sizes, states);
  EXPECT_EQ(specs[2].state_sizes, states);
}

}  // namespace
}  // namespace kvcache
