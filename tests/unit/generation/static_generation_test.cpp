// generate() over a static cache, passed in or asked for with cache_implementation. What is kept of
// a passed one: cache_reuse_test.cpp.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

at::Tensor prompt() { return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}}); }

Inputs padded_batch() {
  return {.input_ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {0, 0, 0, 0, 0, 0, 12, 13, 14}}),
          .attention_mask = ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 1, 1, 1}})};
}

TEST(StaticGeneration, F14ACacheThatTheTextMayOutgrow) {
  const CausalLM& model = testing::checkpoint("llama");
  StaticCache cache(model.config(), {.max_cache_len = 12});
  model.forward({.input_ids = prompt()}, &cache);
  EXPECT_THAT(refusal<ValueError>(
                  [&] { generate(model, {.input_ids = prompt()}, {.max_new_tokens = 5}, &cache); }),
              HasSubstr("the cache is to hold 13, but it has room for 12"));
  EXPECT_EQ(cache.get_seq_length(), 9);
  generate(model, {.input_ids = prompt()}, {.max_new_tokens = 4}, &cache);
  EXPECT_EQ(cache.get_seq_length(), 12);
}

// Windows of 32 over a cache of 6: full layers, whose room is the text's bound.
TEST(StaticGeneration, F09WindowsAboveTheCapacity) {
  const auto model = testing::tiny_model("sliding", 32);
  StaticCache cache(model->config(), {.max_cache_len = 6});
  EXPECT_THROW(generate(*model, {.input_ids = prompt()}, {.max_new_tokens = 4}, &cache),
               ValueError);
  EXPECT_THROW(model->forward({.input_ids = prompt()}, &cache), ValueError);
  EXPECT_EQ(cache.get_seq_length(), 0);
  const Inputs shorter{.input_ids = prompt().narrow(1, 0, 3)};
  EXPECT_TRUE(generate(*model, shorter, {.max_new_tokens = 4}, &cache)
                  .sequences.equal(generate(*model, shorter, {.max_new_tokens = 4}).sequences));
}

// What cache_implementation asks for: as much room as the text needs, or max_cache_len.
TEST(StaticGeneration, EqualsTheDynamicCache) {
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3_sliding"}) {
    const CausalLM& model = testing::checkpoint(name);
    GenerationConfig config{.max_new_tokens = 12, .pad_token_id = 0};
    const Output grown = generate(model, padded_batch(), config);
    config.cache_implementation = "static";
    const Output fixed = generate(model, padded_batch(), config);
    EXPECT_TRUE(fixed.sequences.equal(grown.sequences)) << name;
    EXPECT_EQ(fixed.cache->kind(), "static");
    EXPECT_EQ(fixed.cache->get_seq_length(), 20);
    EXPECT_EQ(fixed.cache->capacity().value_or(20), 20);
    config.max_cache_len = 64;
    EXPECT_EQ(generate(model, padded_batch(), config).cache->capacity().value_or(64), 64);
    config.max_cache_len.reset();
    config.cache_implementation = "hybrid";  // as Gemma 2's checkpoints say it
    EXPECT_EQ(generate(model, padded_batch(), config).cache->kind(), "static");
  }
}

// A size that was set for static caches does not hinder other ones, as in Transformers.
TEST(StaticGeneration, MaxCacheLenHasNoMeaningForOtherCaches) {
  const CausalLM& model = testing::checkpoint("llama");
  GenerationConfig config{.max_new_tokens = 4};
  const Output plain = generate(model, {.input_ids = prompt()}, config);
  const auto expect_as_without = [&](std::int64_t max_cache_len) {
    config.max_cache_len = max_cache_len;
    const Output output = generate(model, {.input_ids = prompt()}, config);
    EXPECT_TRUE(output.sequences.equal(plain.sequences));
    EXPECT_EQ(output.cache->kind(), "dynamic");
    EXPECT_EQ(output.cache->capacity(), std::nullopt);
    EXPECT_EQ(output.cache->allocated_bytes(), plain.cache->allocated_bytes());
  };
  expect_as_without(2);  // less than the text
  expect_as_without(std::int64_t{1} << 40);
  config.cache_implementation = "dynamic";
  expect_as_without(std::int64_t{1} << 40);

  config.cache_implementation.reset();
  StaticCache passed(model.config(), {.max_cache_len = 12});
  EXPECT_TRUE(
      generate(model, {.input_ids = prompt()}, config, &passed).sequences.equal(plain.sequences));
  EXPECT_EQ(passed.capacity(), 12);
  config.use_cache = false;
  EXPECT_TRUE(generate(model, {.input_ids = prompt()}, config).sequences.equal(plain.sequences));
}

TEST(StaticGeneration, APassedCacheAndAKindOfCacheAreRefused) {
  const CausalLM& model = testing::checkpoint("llama");
  StaticCache cache(model.config(), {.max_cache_len = 12});
  EXPECT_THAT(refusal<ValueError>([&] {
                generate(model, {.input_ids = prompt()}, {.cache_implementation = "static"},
                         &cache);
              }),
              HasSubstr("past_key_values was passed together with cache_implementation = "
                        "\"static\", which asks for a new cache; drop one of them"));
  EXPECT_EQ(cache.get_seq_length(), 0);
}

}  // namespace
}  // namespace kvcache
