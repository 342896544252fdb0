// What beam search costs: rows and tokens that go through the model, and what is held.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/beams.h"
#include "tests/support/checkpoints.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::random_ids;
using testing::three_prompts;
using testing::three_prompts_config;

// Counts what goes through a model.
class Counted final : public LanguageModel {
 public:
  struct Pass {
    std::int64_t rows, tokens;
    bool encoder;
    std::int64_t bytes;  // held before
  };

  explicit Counted(const LanguageModel& model)
      : LanguageModel(model.config(), model.dtype(), model.device()), model_(model) {}

  bool needs_whole_text(const ForwardInput& input, Cache& cache) const override {
    return model_.needs_whole_text(input, cache);
  }

  mutable std::vector<Pass> passes;

 private:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    passes.push_back({input.input_ids.size(0), input.input_ids.size(1), input.encoder.has_value(),
                      cache == nullptr ? 0 : cache->nbytes()});
    return model_.forward(input, cache);
  }
  at::Tensor head(const at::Tensor&) const override { throw std::logic_error("not used"); }

  const LanguageModel& model_;
};

TEST(BeamCost, F43ThePromptIsComputedAndHeldOnce) {
  const Counted model(checkpoint("llama"));
  const std::int64_t token_bytes = 3 * 2 * 2 * 8 * 4;  // layers, keys and values, heads, floats
  generate(model, {.input_ids = random_ids(1, 40, 1)}, {.max_new_tokens = 9, .num_beams = 4});
  ASSERT_EQ(model.passes.size(), 9U);
  EXPECT_EQ(model.passes[0].rows, 1);
  EXPECT_EQ(model.passes[0].tokens, 40);
  for (std::size_t i = 1; i < model.passes.size(); ++i) {
    EXPECT_EQ(model.passes[i].rows, 4);
    EXPECT_EQ(model.passes[i].tokens, 1);
    EXPECT_EQ(model.passes[i].bytes, (40 + 4 * (std::int64_t(i) - 1)) * token_bytes);
  }
}

TEST(BeamCost, F30DonePromptsAreNotFed) {
  for (const char* name : {"llama", "mistral", "lfm2"}) {
    for (const bool use_cache : {true, false}) {
      const Counted model(checkpoint(name));
      GenerationConfig config = three_prompts_config();
      config.use_cache = use_cache;
      generate(model, three_prompts(false), config);
      std::vector<std::int64_t> rows;
      for (const Counted::Pass& pass : model.passes) rows.push_back(pass.rows);
      ASSERT_GE(rows.size(), 8U);
      rows.resize(8);  // then the cache gets what it lacks of the texts
      EXPECT_EQ(rows, (std::vector<std::int64_t>{3, 9, 9, 6, 6, 3, 3, 3})) << name << use_cache;
    }
  }
}

// Texts that stop at their last beams cost no pass more; those that ended before are fed again, in
// one pass, and never the prompt.
TEST(BeamCost, F28ThePromptIsNotComputedAgain) {
  for (const char* name : {"llama", "mistral", "lfm2"}) {
    const Counted model(checkpoint(name));
    const Inputs inputs{.input_ids = random_ids(1, 20, 2)};
    GenerationConfig config{.max_new_tokens = 10, .num_beams = 3, .num_return_sequences = 2};
    const at::Tensor free = generate(model, inputs, config).sequences;
    EXPECT_EQ(model.passes.size(), 10U) << name;
    config.eos_token_id = {{free[0][25].item<std::int64_t>()}};
    config.length_penalty = 0;
    model.passes.clear();
    const Output output = generate(model, inputs, config);
    std::int64_t computed = 0;
    for (const Counted::Pass& pass : model.passes) computed += pass.tokens;
    const std::int64_t steps = 9, fed_again = output.sequences.size(1) - 20 - 1;
    EXPECT_LE(model.passes.size(), 11U) << name;
    EXPECT_LE(computed, 20 + steps + fed_again) << name;
    EXPECT_EQ(output.cache->get_seq_length(), output.sequences.size(1) - 1);
  }
}

TEST(BeamCost, F43TheEncoderRunsOnceAndItsKeysStayWhereTheyAre) {
  const Counted model(testing::seq2seq_checkpoint("t5"));
  EncoderDecoderCache cache(model.config());
  generate(model, {.input_ids = random_ids(1, 11, 3)},
           {.max_new_tokens = 7, .num_beams = 4, .num_return_sequences = 3}, &cache);
  ASSERT_GE(model.passes.size(), 7U);
  for (std::size_t i = 0; i < model.passes.size(); ++i) {
    EXPECT_EQ(model.passes[i].encoder, i == 0);
  }
  EXPECT_EQ(cache.cross_attention_cache().batch_size(), 1);
  EXPECT_EQ(cache.batch_size(), 3);
}

TEST(BeamCost, ARunnerUsesItsStaticCacheAgain) {
  Runner runner(checkpoint("gemma3_text"));
  for (const std::int64_t beams : {4, 2, 5}) {
    const Inputs inputs{.input_ids = random_ids(2, 6, 8)};
    GenerationConfig config{.max_new_tokens = 9, .num_beams = beams, .num_return_sequences = 2};
    const at::Tensor expected = generate(checkpoint("gemma3_text"), inputs, config).sequences;
    config.cache_implementation = "static";
    EXPECT_TRUE(runner.generate(inputs, config).sequences.equal(expected)) << beams;
  }
}

}  // namespace
}  // namespace kvcache
