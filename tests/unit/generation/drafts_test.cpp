// Drafts change nothing but the time: prompt lookup and assisted decoding give the ids, and leave
// the cache, of decoding token by token, greedy and sampled, over every kind of layer.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/drafts.h"
#include "tests/support/ended_rows.h"
#include "tests/support/refusal.h"
#include "tests/support/sweep.h"
#include "tests/support/table_text.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

// Texts that repeat themselves, so that look-ups find something.
at::Tensor repeating(std::int64_t tokens) {
  at::Tensor ids = at::empty({1, tokens}, at::kLong);
  for (std::int64_t i = 0; i < tokens; ++i) ids[0][i] = 3 + i % 3;
  return ids;
}

struct Kind {
  std::string model;
  std::string cache;

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) {
    return out << kind.model << "_" << kind.cache;
  }
};

std::unique_ptr<Cache> make_cache(const Kind& kind) {
  const ModelConfig& config = checkpoint(kind.model).config();
  if (kind.cache == "static") {
    return std::make_unique<StaticCache>(config, StaticCacheOptions{.max_cache_len = 64});
  }
  if (kind.cache == "mamba") return std::make_unique<MambaCache>(config);
  return std::make_unique<DynamicCache>(config);
}

class Drafts : public ::testing::TestWithParam<Kind> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam().model); }

  struct Made {
    at::Tensor ids;
    at::Tensor logits;
  };

  // Ids and logits; then goes on with the cache, which must hold all of them but the last.
  Made run(const at::Tensor& prompt, GenerationConfig config, std::optional<std::uint64_t> seed,
           const LanguageModel* assistant = nullptr) const {
    config.do_sample = seed.has_value();
    config.output_logits = true;
    Inputs inputs{.input_ids = prompt, .assistant_model = assistant};
    if (seed) inputs.generator = make_generator(*seed);
    if (config.stop_strings) inputs.text = testing::spelled_ids();
    const auto cache = make_cache(GetParam());
    const Output output = generate(model(), inputs, config, cache.get());
    EXPECT_EQ(cache->get_seq_length(), output.sequences.size(1) - 1);
    EXPECT_TRUE(
        cache->history().ids().equal(output.sequences.narrow(1, 0, output.sequences.size(1) - 1)));
    const Output more =
        generate(model(), {.input_ids = output.sequences}, {.max_new_tokens = 3}, cache.get());
    return {more.sequences, *output.logits};
  }

  void expect_equal(const at::Tensor& prompt, const GenerationConfig& plain,
                    const GenerationConfig& drafted, std::optional<std::uint64_t> seed,
                    const LanguageModel* assistant = nullptr) const {
    const Made expected = run(prompt, plain, seed);
    const Made made = run(prompt, drafted, seed, assistant);
    EXPECT_TRUE(made.ids.equal(expected.ids))
        << "prompt of " << prompt.size(1) << ", " << *plain.max_new_tokens << " new tokens";
    ASSERT_EQ(made.logits.sizes(), expected.logits.sizes());
    EXPECT_LT(testing::difference(made.logits, expected.logits), 1e-4);
    // What the caches were gone on with is what follows without one.
    const at::Tensor text = expected.ids.narrow(1, 0, expected.ids.size(1) - 3);
    const GenerationConfig uncached{.max_new_tokens = 3, .use_cache = false};
    EXPECT_TRUE(generate(model(), {.input_ids = text}, uncached).sequences.equal(expected.ids));
  }
};

TEST_P(Drafts, F38F39PromptLookupEqualsTokenByToken) {
  const std::int64_t stride = testing::sweep_count(5, 1);
  for (const std::int64_t length : {1, 2, 5, 9, 14}) {
    for (std::int64_t tokens = 1; tokens <= 24; tokens += stride) {
      const GenerationConfig plain{.max_new_tokens = tokens};
      GenerationConfig drafted = plain;
      drafted.prompt_lookup_num_tokens = 1 + (tokens + length) % 6;
      drafted.max_matching_ngram_size = 1 + tokens % 3;
      expect_equal(repeating(length), plain, drafted, std::nullopt);
      expect_equal(repeating(length), plain, drafted, 7);
    }
  }
}

TEST_P(Drafts, F40AssistedEqualsTokenByToken) {
  for (const std::int64_t length : {1, 3, 5, 12}) {
    for (const std::int64_t tokens : {1, 2, 4, 12}) {
      const GenerationConfig plain{.max_new_tokens = tokens};
      GenerationConfig drafted = plain;
      drafted.num_assistant_tokens = 1 + length % 5;
      drafted.assistant_confidence_threshold = 0;
      if (length == 5) drafted.num_assistant_tokens_schedule = "heuristic";
      for (const char* assistant : {"llama", "mistral", "lfm2"}) {
        expect_equal(repeating(length), plain, drafted, std::nullopt, &checkpoint(assistant));
      }
      expect_equal(repeating(length), plain, drafted, std::nullopt, &model());
      expect_equal(repeating(length), plain, drafted, 5, &model());
    }
  }
}

TEST_P(Drafts, F39NothingFollowsAnEnd) {
  const at::Tensor free =
      generate(model(), {.input_ids = repeating(9)}, {.max_new_tokens = 12}).sequences;
  for (const std::int64_t at : {9, 11, 14}) {
    GenerationConfig plain{.max_new_tokens = 12,
                           .eos_token_id = {{free[0][at].item<std::int64_t>()}}};
    GenerationConfig drafted = plain;
    drafted.prompt_lookup_num_tokens = 5;
    expect_equal(repeating(9), plain, drafted, std::nullopt);
    drafted = plain;
    drafted.assistant_confidence_threshold = 0;
    expect_equal(repeating(9), plain, drafted, std::nullopt, &model());
  }
}

TEST_P(Drafts, F49NothingFollowsAStopStringWithinADraft) {
  const at::Tensor free =
      generate(model(), {.input_ids = repeating(9)}, {.max_new_tokens = 12}).sequences;
  for (std::int64_t at = 9; at < 15; ++at) {
    const std::string stop = testing::spelled(free[0][at].item<std::int64_t>());
    const GenerationConfig plain{.max_new_tokens = 12, .stop_strings = {{stop}}};
    GenerationConfig drafted = plain;
    drafted.prompt_lookup_num_tokens = 5;
    expect_equal(repeating(9), plain, drafted, std::nullopt);
    drafted = plain;
    drafted.num_assistant_tokens = 6;
    drafted.assistant_confidence_threshold = 0;
    expect_equal(repeating(9), plain, drafted, std::nullopt, &model());
    expect_equal(repeating(9), plain, drafted, 3, &model());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Drafts,
    ::testing::Values(Kind{"llama", "dynamic"}, Kind{"llama", "static"}, Kind{"mistral", "dynamic"},
                      Kind{"mistral", "static"}, Kind{"gemma3_text", "dynamic"},
                      Kind{"gemma2", "static"}, Kind{"llama4_text", "dynamic"},
                      Kind{"llama4_text", "static"}, Kind{"mamba", "mamba"},
                      Kind{"mamba2", "dynamic"}, Kind{"lfm2", "dynamic"}, Kind{"lfm2", "static"},
                      Kind{"jamba", "dynamic"}, Kind{"qwen3_next", "dynamic"},
                      Kind{"qwen3_next", "static"}, Kind{"phi3_longrope", "dynamic"},
                      Kind{"llama_dynamic", "dynamic"}),
    ::testing::PrintToStringParamName());

TEST(DraftsOfOneRow, TheModelsOwnDraftsAreAllAccepted) {
  const CausalLM& model = checkpoint("llama");
  struct Passes {
    std::int64_t drafted;
    std::vector<std::int64_t> model, assistant;  // tokens of each
  };
  // The prompt's 9 make a token; a pass of that and d drafted ones makes d + 1. The last of the 12
  // is not drafted. The assistant feeds what it has not seen, and its drafts but their last.
  const std::vector<Passes> all = {
      {4, {9, 5, 5, 1}, {10, 1, 1, 1, 2, 1, 1, 1}},
      {12, {9, 11}, {10, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
  };
  for (const Passes& passes : all) {
    const testing::NotingModel checking(model), drafting(model);
    GenerationConfig config{.max_new_tokens = 12};
    config.num_assistant_tokens = passes.drafted;
    config.assistant_confidence_threshold = 0;
    const Output output =
        generate(checking, {.input_ids = repeating(9), .assistant_model = &drafting}, config);
    EXPECT_EQ(output.timings.decode_tokens, 11);
    EXPECT_EQ(checking.tokens, passes.model);
    EXPECT_EQ(drafting.tokens, passes.assistant);
  }
}

// Lets 3 and 4 follow each other, whatever the model says.
class Alternate final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    return at::full_like(scores, -1e9).scatter_(1, text.ids.narrow(1, -1, 1).neg().add(7), 0.0);
  }
};

TEST(DraftsOfOneRow, F38ATextThatRepeatsItselfTakesFewPasses) {
  const testing::NotingModel model(checkpoint("llama"));
  Inputs inputs{.input_ids = ids_tensor({{3, 4}}).repeat({1, 8}),
                .logits_processors = {std::make_shared<Alternate>()}};
  const auto fed = [&](std::int64_t tokens) {
    model.tokens.clear();
    const GenerationConfig lookup{.max_new_tokens = tokens, .prompt_lookup_num_tokens = 5};
    const at::Tensor text = generate(model, inputs, lookup).sequences;
    EXPECT_TRUE(text.equal(ids_tensor({{3, 4}}).repeat({1, 20}).narrow(1, 0, 16 + tokens)));
    return model.tokens;
  };
  // A pass of 5 drafted tokens makes 6; the last token of all is not drafted.
  EXPECT_THAT(fed(1), ElementsAre(16));
  EXPECT_THAT(fed(2), ElementsAre(16, 1));
  EXPECT_THAT(fed(3), ElementsAre(16, 2));
  EXPECT_THAT(fed(7), ElementsAre(16, 6));
  EXPECT_THAT(fed(8), ElementsAre(16, 6, 1));
  EXPECT_THAT(fed(12), ElementsAre(16, 6, 5));
  EXPECT_THAT(fed(24), ElementsAre(16, 6, 6, 6, 5));
}

TEST(DraftsOfOneRow, F38ExactlyAsManyTokensAsAskedFor) {
  const CausalLM& model = checkpoint("llama");
  const at::Tensor prompt = ids_tensor({{3, 4}}).repeat({1, 8});
  const at::Tensor greedy = generate(model, {.input_ids = prompt}, {.max_new_tokens = 8}).sequences;
  for (std::int64_t tokens = 1; tokens <= 8; ++tokens) {
    const GenerationConfig lookup{.max_new_tokens = tokens, .prompt_lookup_num_tokens = 5};
    EXPECT_TRUE(generate(model, {.input_ids = prompt}, lookup)
                    .sequences.equal(greedy.narrow(1, 0, 16 + tokens)))
        << tokens;
  }
}

TEST(DraftsOfOneRow, F26TheLastTokenIsNotInTheCache) {
  const CausalLM& model = checkpoint("llama");
  const at::Tensor prompt = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}});
  for (const auto& [tokens, held] : {std::pair{1, 9}, {2, 10}, {4, 12}, {7, 15}}) {
    for (const bool assisted : {false, true}) {
      GenerationConfig config{.max_new_tokens = tokens};
      if (!assisted) config.prompt_lookup_num_tokens = 5;
      DynamicCache cache(model.config());
      const Inputs inputs{.input_ids = prompt, .assistant_model = assisted ? &model : nullptr};
      const at::Tensor made = generate(model, inputs, config, &cache).sequences;
      EXPECT_EQ(cache.get_seq_length(), held) << assisted;
      const Output next = generate(model, {.input_ids = made}, {.max_new_tokens = 3}, &cache);
      EXPECT_EQ(next.timings.prefill_tokens, 1);
      EXPECT_TRUE(next.sequences.equal(
          generate(model, {.input_ids = prompt}, {.max_new_tokens = tokens + 3}).sequences));
    }
  }
}

TEST(DraftsOfOneRow, APaddedRowIsReadWithoutItsPadding) {
  const CausalLM& model = checkpoint("mistral");
  at::Tensor ids = at::cat({at::full({1, 4}, 3, at::kLong), repeating(9)}, 1);
  at::Tensor mask = at::ones_like(ids);
  mask.narrow(1, 0, 4).fill_(0);
  const Inputs inputs{.input_ids = ids, .attention_mask = mask};
  const at::Tensor expected = generate(model, inputs, {.max_new_tokens = 10}).sequences;
  const GenerationConfig lookup{.max_new_tokens = 10, .prompt_lookup_num_tokens = 4};
  EXPECT_TRUE(generate(model, inputs, lookup).sequences.equal(expected));
  Inputs assisted = inputs;
  assisted.assistant_model = &checkpoint("llama");
  EXPECT_TRUE(generate(model, assisted, {.max_new_tokens = 10}).sequences.equal(expected));
}

std::unique_ptr<Cache> encoder_decoder_cache(const ModelConfig& config, bool fixed) {
  if (!fixed) return std::make_unique<EncoderDecoderCache>(config);
  const StaticCacheOptions room{.max_cache_len = 48};
  const std::vector<LayerSpec> layers = config.layer_specs();
  return std::make_unique<EncoderDecoderCache>(StaticCache(layers, room),
                                               StaticCache(cross_attention_layers(layers), room));
}

TEST(DraftsOfOneRow, F38AModelWithAnEncoderLooksUpToo) {
  const LanguageModel& t5 = testing::seq2seq_checkpoint("t5");
  const testing::NotingModel model(t5);
  // A text of few tokens, so that it repeats itself.
  const auto settings = [](std::int64_t tokens, std::optional<std::int64_t> lookup) {
    return GenerationConfig{.max_new_tokens = tokens,
                            .suppress_tokens = testing::from_to(6, 63),
                            .prompt_lookup_num_tokens = lookup};
  };
  std::int64_t passes = 0, made = 0;
  for (std::int64_t tokens = 1; tokens <= 24; ++tokens) {
    for (const bool fixed : {false, true}) {
      Inputs inputs{.input_ids = repeating(1 + tokens % 9),
                    .decoder_input_ids = at::cat({ids_tensor({{0}}), repeating(tokens % 6)}, 1)};
      const std::int64_t prompt = inputs.decoder_input_ids.size(1);
      GenerationConfig uncached = settings(tokens + 3, std::nullopt);
      uncached.use_cache = false;
      const at::Tensor expected = generate(t5, inputs, uncached).sequences;
      const auto cache = encoder_decoder_cache(t5.config(), fixed);
      model.tokens.clear();
      const std::int64_t longest = 1 + tokens % 5;
      const at::Tensor text =
          generate(model, inputs, settings(tokens, longest), cache.get()).sequences;
      EXPECT_TRUE(text.equal(expected.narrow(1, 0, prompt + tokens))) << tokens << fixed;
      EXPECT_EQ(model.tokens, testing::fed_with_drafts(testing::numbers_of(text[0]), prompt,
                                                       testing::looked_up(longest, 2)));
      EXPECT_EQ(cache->get_seq_length(), prompt + tokens - 1);
      passes += std::int64_t(model.tokens.size());
      made += tokens;
      inputs.decoder_input_ids = text;
      EXPECT_TRUE(
          generate(t5, inputs, settings(3, std::nullopt), cache.get()).sequences.equal(expected));
    }
  }
  EXPECT_LT(passes, made);
}

TEST(DraftsOfOneRow, WhatCannotBeDraftedIsRefused) {
  const CausalLM& model = checkpoint("llama");
  const auto refused = [&](const Inputs& inputs, const GenerationConfig& config) {
    return refusal<ValueError>([&] { generate(model, inputs, config); });
  };
  const Inputs one{.input_ids = repeating(4)};
  const GenerationConfig lookup{.max_new_tokens = 2, .prompt_lookup_num_tokens = 3};
  EXPECT_THAT(refused({.input_ids = repeating(4).repeat({2, 1})}, lookup),
              HasSubstr("there are 2"));
  GenerationConfig uncached = lookup;
  uncached.use_cache = false;
  EXPECT_THAT(refused(one, uncached), HasSubstr("use_cache"));
  EXPECT_THAT(refused({.input_ids = repeating(4), .assistant_model = &model}, lookup),
              HasSubstr("leave out one of them"));
  EXPECT_THAT(
      refused({.input_ids = repeating(4), .assistant_model = &testing::seq2seq_checkpoint("t5")},
              {.max_new_tokens = 2}),
      HasSubstr("decoders alone"));
}

}  // namespace
}  // namespace kvcache
