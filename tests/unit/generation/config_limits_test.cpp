// Values that fields of a GenerationConfig can have. Many of those refused here Transformers takes
// and ignores, or fails over in the middle of generating.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kvcache/core/errors.h"
#include "kvcache/generation/generation_config.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

std::string invalid(const GenerationConfig& config) {
  return refusal<ValueError>([&] { config.validate(); });
}

TEST(ConfigLimits, F44SamplingFieldsOutOfRangeAreErrors) {
  const auto sampling = [](GenerationConfig config) {
    config.do_sample = true;
    return invalid(config);
  };
  EXPECT_THAT(sampling({.top_k = -1}), HasSubstr("top_k must be at least 0, but is -1"));
  EXPECT_THAT(sampling({.top_p = 1.1}), HasSubstr("top_p must be in [0, 1], but is 1.1"));
  EXPECT_THAT(sampling({.top_p = -0.1}), HasSubstr("top_p"));
  EXPECT_THAT(sampling({.min_p = 1.1}), HasSubstr("min_p must be in [0, 1], but is 1.1"));
  EXPECT_THAT(sampling({.min_p = -0.1}), HasSubstr("min_p"));
  EXPECT_THAT(sampling({.temperature = 0.0}), HasSubstr("temperature must be above 0"));
  EXPECT_THAT(sampling({.temperature = -1.0}), HasSubstr("temperature"));
  EXPECT_THAT(invalid({.num_return_sequences = 2}), HasSubstr("needs do_sample"));
  EXPECT_THAT(invalid({.num_beams = 2, .num_return_sequences = 3}),
              HasSubstr("num_return_sequences must be at most num_beams = 2, but is 3"));
  EXPECT_THAT(sampling({.num_return_sequences = 0}), HasSubstr("num_return_sequences"));
}

TEST(ConfigLimits, GreedyDecodingTakesTemperatureZero) {
  GenerationConfig{.temperature = 0.0}.validate();
}

TEST(ConfigLimits, NumbersThatAreNoneAreErrors) {
  EXPECT_THAT(invalid({.temperature = NAN}), HasSubstr("temperature"));
  EXPECT_THAT(invalid({.temperature = INFINITY}), HasSubstr("temperature"));
  EXPECT_THAT(invalid({.top_p = NAN}), HasSubstr("top_p"));
  EXPECT_THAT(invalid({.min_p = NAN}), HasSubstr("min_p"));
  EXPECT_THAT(invalid({.repetition_penalty = NAN}), HasSubstr("repetition_penalty"));
  EXPECT_THAT(invalid({.repetition_penalty = 0.0}), HasSubstr("repetition_penalty"));
}

TEST(ConfigLimits, NumbersBeyondFloat32AreErrors) {
  for (const double value : {1e-300, 1e39}) {
    EXPECT_THAT(invalid({.temperature = value}), HasSubstr("temperature"));
    EXPECT_THAT(invalid({.do_sample = true, .temperature = value}), HasSubstr("temperature"));
    EXPECT_THAT(invalid({.repetition_penalty = value}), HasSubstr("repetition_penalty"));
  }
  EXPECT_THAT(invalid({.do_sample = true, .num_return_sequences = 65'537}),
              HasSubstr("num_return_sequences must be at most 65536"));
}

TEST(ConfigLimits, LengthsAndTokensOutOfRangeAreErrors) {
  EXPECT_THAT(invalid({.max_new_tokens = 0}), HasSubstr("max_new_tokens must be at least 1"));
  EXPECT_THAT(invalid({.max_length = 0}), HasSubstr("max_length"));
  EXPECT_THAT(invalid({.min_new_tokens = -1}), HasSubstr("min_new_tokens"));
  EXPECT_THAT(invalid({.min_length = -1}), HasSubstr("min_length"));
  EXPECT_THAT(invalid({.eos_token_id = {{1, -1}}}), HasSubstr("eos_token_id"));
  EXPECT_THAT(invalid({.pad_token_id = -1}), HasSubstr("pad_token_id"));
  EXPECT_THAT(invalid({.bos_token_id = -1}), HasSubstr("bos_token_id"));
  EXPECT_THAT(invalid({.decoder_start_token_id = -1}), HasSubstr("decoder_start_token_id"));
}

TEST(ConfigLimits, LengthsStayFarFromOverflow) {
  EXPECT_THAT(invalid({.max_new_tokens = std::numeric_limits<std::int64_t>::max()}),
              HasSubstr("max_new_tokens must be at most 1099511627776"));
  EXPECT_THAT(invalid({.min_new_tokens = std::numeric_limits<std::int64_t>::max()}),
              HasSubstr("min_new_tokens must be at most"));
}

TEST(ConfigLimits, EndsOutOfRangeAreErrors) {
  EXPECT_THAT(invalid({.max_time = -1}),
              HasSubstr("max_time must be at least 0 seconds, but is -1"));
  EXPECT_THAT(invalid({.max_time = NAN}), HasSubstr("max_time"));
  EXPECT_THAT(invalid({.stop_strings = {{"a", ""}}}),
              HasSubstr("stop_strings holds an empty text"));
}

TEST(ConfigLimits, TruncationsOutOfRangeAreErrors) {
  for (const double value : {0.0, -0.5, 1.5, static_cast<double>(NAN)}) {
    EXPECT_THAT(invalid({.top_h = value}), HasSubstr("top_h must be above 0 and at most 1"));
    EXPECT_THAT(invalid({.typical_p = value}),
                HasSubstr("typical_p must be above 0 and at most 1"));
  }
  for (const double value : {-0.1, 1.0, 2.0, static_cast<double>(NAN)}) {
    EXPECT_THAT(invalid({.epsilon_cutoff = value}), HasSubstr("epsilon_cutoff must be at least 0"));
    EXPECT_THAT(invalid({.eta_cutoff = value}), HasSubstr("eta_cutoff must be at least 0"));
  }
}

TEST(ConfigLimits, PenaltiesAndNgramsOutOfRangeAreErrors) {
  EXPECT_THAT(invalid({.encoder_repetition_penalty = 0}),
              HasSubstr("encoder_repetition_penalty must be above 0 (1: off)"));
  EXPECT_THAT(invalid({.no_repeat_ngram_size = -1}),
              HasSubstr("no_repeat_ngram_size must be at least 0, but is -1"));
  EXPECT_THAT(invalid({.encoder_no_repeat_ngram_size = -2}),
              HasSubstr("encoder_no_repeat_ngram_size must be at least 0, but is -2"));
  EXPECT_THAT(invalid({.exponential_decay_length_penalty = {{-1, 1.1}}}),
              HasSubstr("start_index must be at least 0, but is -1"));
  EXPECT_THAT(invalid({.exponential_decay_length_penalty = {{1, -1.1}}}),
              HasSubstr("decay_factor must be above 0"));
}

TEST(ConfigLimits, SequencesThatAreNoneAreErrors) {
  EXPECT_THAT(invalid({.bad_words_ids = {{{1}, {}}}}),
              HasSubstr("bad_words_ids holds an empty sequence"));
  EXPECT_THAT(invalid({.bad_words_ids = {{{1, -3}}}}),
              HasSubstr("bad_words_ids must be at least 0"));
  EXPECT_THAT(invalid({.sequence_bias = {{{{}, 1}}}}),
              HasSubstr("sequence_bias holds an empty sequence"));
  EXPECT_THAT(invalid({.sequence_bias = {{{{-1}, 1}}}}),
              HasSubstr("sequence_bias must be at least"));
  EXPECT_THAT(invalid({.sequence_bias = {{{{1}, -INFINITY}}}}), HasSubstr("use bad_words_ids"));
  EXPECT_THAT(invalid({.sequence_bias = {{{{1}, NAN}}}}), HasSubstr("within float32"));
  EXPECT_THAT(invalid({.suppress_tokens = {{-1}}}), HasSubstr("suppress_tokens"));
  EXPECT_THAT(invalid({.begin_suppress_tokens = {{-1}}}), HasSubstr("begin_suppress_tokens"));
  EXPECT_THAT(invalid({.forced_bos_token_id = -1}), HasSubstr("forced_bos_token_id"));
  EXPECT_THAT(invalid({.forced_eos_token_id = {{-1}}}), HasSubstr("forced_eos_token_id"));
}

TEST(ConfigLimits, AForcedTokenMustNotBeSuppressed) {
  EXPECT_THAT(invalid({.forced_bos_token_id = 3, .suppress_tokens = {{2, 3}}}),
              HasSubstr("forced_bos_token_id = [3]: suppress_tokens holds all of it"));
  EXPECT_THAT(invalid({.forced_eos_token_id = {{3, 4}}, .suppress_tokens = {{4, 3}}}),
              HasSubstr("forced_eos_token_id = [3, 4]: suppress_tokens holds all of it"));
}

TEST(ConfigLimits, BeamsAndDraftsOutOfRangeAreErrors) {
  EXPECT_THAT(invalid({.num_beams = 0}), HasSubstr("num_beams must be at least 1, but is 0"));
  EXPECT_THAT(invalid({.num_beams = 65'537}), HasSubstr("num_beams must be at most 65536"));
  EXPECT_THAT(invalid({.length_penalty = NAN}), HasSubstr("length_penalty must be a number"));
  EXPECT_THAT(invalid({.prompt_lookup_num_tokens = 0}),
              HasSubstr("prompt_lookup_num_tokens must be at least 1, but is 0"));
  EXPECT_THAT(invalid({.max_matching_ngram_size = 0}), HasSubstr("max_matching_ngram_size"));
  EXPECT_THAT(invalid({.num_assistant_tokens = 0}), HasSubstr("num_assistant_tokens"));
  EXPECT_THAT(invalid({.num_assistant_tokens_schedule = "slow"}),
              HasSubstr("no num_assistant_tokens_schedule \"slow\"; it can be \"constant\""));
  EXPECT_THAT(invalid({.assistant_confidence_threshold = 1.5}),
              HasSubstr("assistant_confidence_threshold must be in [0, 1], but is 1.5"));
}

// As checkpoints made for beam search have them, when the caller asks for one beam.
TEST(ConfigLimits, FieldsOfBeamSearchHaveNoEffectWithoutIt) {
  GenerationConfig{.early_stopping = EarlyStopping::yes, .length_penalty = 2}.validate();
}

TEST(ConfigLimits, CacheKinds) {
  EXPECT_THAT(invalid({.cache_implementation = "magic"}),
              HasSubstr("there is no cache_implementation \"magic\"; it can be \"dynamic\", "
                        "\"static\", \"offloaded\", \"offloaded_static\" or \"quantized\""));
  for (const char* kind : {"dynamic", "static", "sliding_window", "hybrid", "hybrid_chunked"}) {
    GenerationConfig{.cache_implementation = kind}.validate();
  }
  EXPECT_THAT(invalid({.max_cache_len = 0}), HasSubstr("max_cache_len must be at least 1"));
  EXPECT_THAT(invalid({.prefill_chunk_size = 0}),
              HasSubstr("prefill_chunk_size must be at least 1, but is 0"));
  EXPECT_THAT(invalid({.use_cache = false, .prefill_chunk_size = 4}),
              HasSubstr("prefill_chunk_size = 4 needs a cache"));
}

TEST(ConfigLimits, CacheSettingsAreThoseOfTheKind) {
  const auto quantized = [](const char* settings) {
    return invalid({.cache_implementation = "quantized", .cache_config = settings});
  };
  for (const char* right :
       {"{}", R"({"backend": "quanto", "nbits": 2, "axis_key": -1, "axis_value": 0})",
        R"({"backend": "hqq", "nbits": 8, "axis_key": 1, "q_group_size": 32})",
        R"({"backend": "fp8"})",
        R"({"backend": "int", "nbits": 8, "rotate_keys": true, "pinned_tokens": 4})",
        R"({"key_nbits": 4, "value_nbits": 2, "first_dense_layers": 1, "last_dense_layers": 1})",
        R"({"residual_length": 64, "nbits": null})"}) {
    GenerationConfig{.cache_implementation = "quantized", .cache_config = right}.validate();
  }
  EXPECT_THAT(
      quantized(R"({"backend": "magic"})"),
      HasSubstr(
          R"(no backend "magic" in cache_config; it can be "quanto", "hqq", "fp8" or "int")"));
  EXPECT_THAT(quantized(R"({"nbits": 3})"),
              HasSubstr("cache_config's nbits must be one of [2,4] for quanto, but is 3"));
  EXPECT_THAT(quantized(R"({"backend": "hqq", "axis_key": -1})"),
              HasSubstr("axis_key must be one of [0,1] for hqq, but is -1"));
  EXPECT_THAT(quantized(R"({"q_group_size": 0})"), HasSubstr("an integer of at least 1, but is 0"));
  EXPECT_THAT(quantized(R"({"residual_length": 1.5})"), HasSubstr("residual_length must be"));
  EXPECT_THAT(quantized(R"({"backend": 4})"), HasSubstr("backend must be a string, but is 4"));
  EXPECT_THAT(quantized(R"({"rotate_keys": 1})"), HasSubstr("rotate_keys must be true or false"));
  EXPECT_THAT(quantized(R"({"axis_key": 18446744073709551615})"), HasSubstr("at most 63 bits"));
  EXPECT_THAT(quantized(R"({"key_nbits": 3})"), HasSubstr("key_nbits must be one of [2,4]"));
  EXPECT_THAT(quantized(R"({"pinned_tokens": -1})"), HasSubstr("pinned_tokens must be an integer"));
  EXPECT_THAT(quantized(R"({"backend": "fp8", "nbits": 4})"),
              HasSubstr("nbits has no use: fp8 takes none of nbits"));
  EXPECT_THAT(quantized(R"({"bits": 4})"),
              HasSubstr("cache_config has no field \"bits\"; the quantized cache takes backend"));
  EXPECT_THAT(invalid({.cache_config = R"({"nbits":4})"}),
              HasSubstr("has no use: the dynamic cache has no settings"));
  EXPECT_THAT(quantized(R"({"nbits": 4, "nbits": 2})"), HasSubstr("\"nbits\" occurs twice"));
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const char* name : {"nbits", "backend", "q_group_size", "other"}) {
    EXPECT_THAT(quantized(("{\"" + std::string(name) + "\": " + deep + "}").c_str()),
                HasSubstr("cache_config must be a JSON object: JSON nested deeper than 16 levels"));
  }
  EXPECT_THAT(invalid({.cache_config = "4"}), HasSubstr("cache_config must be a JSON object"));
  EXPECT_THAT(invalid({.cache_config = "{"}), HasSubstr("cache_config must be a JSON object"));
}

}  // namespace
}  // namespace kvcache
