// generate() over quantized caches: exact where nothing is packed, close where something is, with
// beams and drafts. Turns: tests/unit/chat.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/quantized_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::difference;
using testing::ids_tensor;

at::Tensor prompt() { return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}}); }

GenerationConfig config(const char* settings) {
  return {.max_new_tokens = 12,
          .cache_implementation = "quantized",
          .cache_config = settings,
          .pad_token_id = 0};
}

// F55: as long as all tokens are in the recent window, logits are those of the dense cache.
TEST(QuantizedGeneration, F55_NothingIsLostWithinTheRecentWindow) {
  const auto model = testing::tiny_model("full");
  for (const char* backend : {"quanto", "hqq"}) {
    QuantizedCache quantized(model->config(), {.config = {.backend = backend, .q_group_size = 8}});
    DynamicCache dense(model->config());
    const at::Tensor next = ids_tensor({{3}});
    for (const at::Tensor& ids : {prompt(), next, next}) {
      const at::Tensor logits = model->forward({.input_ids = ids}, &quantized);
      EXPECT_EQ(difference(logits, model->forward({.input_ids = ids}, &dense)), 0);
    }
  }
}

// F60: no NaN, and the dense cache's ids.
TEST(QuantizedGeneration, F60_Fp8MakesTheDenseCachesTokens) {
  const auto model = testing::tiny_model("full");
  const GenerationConfig dense{.max_new_tokens = 12, .pad_token_id = 0};
  const Output output = generate(*model, {.input_ids = prompt()}, config(R"({"backend":"fp8"})"));
  EXPECT_TRUE(
      at::equal(output.sequences, generate(*model, {.input_ids = prompt()}, dense).sequences));
}

// Models of sliding layers and hybrids, with 8 bits, which change few logits by much.
class QuantizedFamilies : public ::testing::TestWithParam<const char*> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam()); }
  GenerationConfig quantized() const {
    return config(R"({"backend":"hqq","nbits":8,"axis_key":1,"axis_value":1,"residual_length":2})");
  }
};

TEST_P(QuantizedFamilies, LogitsStayNearTheDenseCaches) {
  QuantizedCache cache(
      model().config(),
      {.config = {
           .backend = "hqq", .nbits = 8, .axis_key = 1, .axis_value = 1, .residual_length = 2}});
  DynamicCache dense(model().config());
  at::Tensor logits, right;
  for (std::int64_t token = 0; token < 24; ++token) {
    const at::Tensor ids = ids_tensor({{(token * 7 + 3) % 60}});
    logits = model().forward({.input_ids = ids}, &cache).to(at::kFloat);
    right = model().forward({.input_ids = ids}, &dense).to(at::kFloat);
    EXPECT_LE(difference(logits, right), 0.1 * right.abs().max().item<double>()) << token;
  }
}

TEST_P(QuantizedFamilies, BeamsAndDraftsRun) {
  GenerationConfig beams = quantized();
  beams.num_beams = 3;
  const Output best = generate(model(), {.input_ids = prompt()}, beams);
  EXPECT_EQ(best.sequences.size(1), 9 + 12);
  GenerationConfig drafts = quantized();
  drafts.prompt_lookup_num_tokens = 3;
  EXPECT_TRUE(at::equal(generate(model(), {.input_ids = prompt()}, drafts).sequences,
                        generate(model(), {.input_ids = prompt()}, quantized()).sequences));
}

TEST_P(QuantizedFamilies, RowsOfABatchAreThoseAlone) {
  const at::Tensor rows = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {9, 8, 7, 6, 5, 4, 3, 2, 1}});
  const Output both = generate(model(), {.input_ids = rows}, quantized());
  for (const std::int64_t row : {0, 1}) {
    const Output alone = generate(model(), {.input_ids = rows.narrow(0, row, 1)}, quantized());
    EXPECT_TRUE(at::equal(both.sequences.narrow(0, row, 1), alone.sequences)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFamilies,
                         ::testing::Values("llama", "mistral", "gemma3_text", "lfm2", "qwen3_next",
                                           "llama4_text"));

}  // namespace
}  // namespace kvcache
