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
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/sweep.h"
#include "tests/support/table_text.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
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

// Counts tokens.
class Counting final : public Streamer {
 public:
  void put(const at::Tensor&) override { ++tokens; }
  int tokens = 0;
};

TEST(DraftsOfOneRow, TheModelsOwnDraftsAreAllAccepted) {
  const CausalLM& model = checkpoint("llama");
  Counting streamer;
  GenerationConfig config{.max_new_tokens = 12};
  config.num_assistant_tokens = 4;
  config.assistant_confidence_threshold = 0;
  const Output output = generate(
      model, {.input_ids = repeating(9), .streamer = &streamer, .assistant_model = &model}, config);
  EXPECT_EQ(streamer.tokens, 12);
  EXPECT_EQ(output.timings.decode_tokens, 11);
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

TEST(DraftsOfOneRow, F49NothingFollowsAStopStringWithinADraft) {
  const CausalLM& model = checkpoint("llama");
  std::vector<std::string> table;
  for (std::int64_t id = 0; id < 64; ++id) table.push_back("<" + std::to_string(id) + ">");
  const at::Tensor free =
      generate(model, {.input_ids = repeating(9)}, {.max_new_tokens = 12}).sequences;
  for (std::int64_t at = 9; at < 15; ++at) {
    GenerationConfig config{.max_new_tokens = 12};
    config.stop_strings = {{table[std::size_t(free[0][at].item<std::int64_t>())]}};
    const Inputs plain{.input_ids = repeating(9), .text = testing::table_text(table)};
    const at::Tensor expected = generate(model, plain, config).sequences;
    config.num_assistant_tokens = 6;
    config.assistant_confidence_threshold = 0;
    Inputs drafted = plain;
    drafted.assistant_model = &model;
    DynamicCache cache(model.config());
    const at::Tensor made = generate(model, drafted, config, &cache).sequences;
    EXPECT_TRUE(made.equal(expected));
    EXPECT_EQ(cache.get_seq_length(), made.size(1) - 1);
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

TEST(DraftsOfOneRow, AModelWithAnEncoderLooksUpToo) {
  const LanguageModel& model = testing::seq2seq_checkpoint("t5");
  const Inputs inputs{.input_ids = repeating(9), .decoder_input_ids = ids_tensor({{0, 4, 5, 4}})};
  const at::Tensor expected = generate(model, inputs, {.max_new_tokens = 10}).sequences;
  const GenerationConfig lookup{.max_new_tokens = 10, .prompt_lookup_num_tokens = 4};
  EXPECT_TRUE(generate(model, inputs, lookup).sequences.equal(expected));
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
