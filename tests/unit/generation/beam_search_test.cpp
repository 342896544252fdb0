// generate() with beams: the best texts, the same over every kind of cache, row by row.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/processors.h"
#include "tests/support/refusal.h"
#include "tests/support/table_text.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

at::Tensor prompt() { return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}}); }

std::unique_ptr<CausalLM> model_of_four_words() {
  ModelConfig config = testing::tiny_config("full");
  config.vocab_size = 4;
  auto weights = testing::tiny_weights(config, /*seed=*/3);
  weights["lm_head.weight"].mul_(0.3);  // so that no text is far better than all others
  return testing::tiny_model_of(config, weights);
}

struct Scored {
  std::vector<std::int64_t> ids;
  double score = 0;
};

// Every text of so many new tokens, best first.
std::vector<Scored> all_texts(const CausalLM& model, const at::Tensor& start, std::int64_t tokens) {
  std::vector<Scored> texts = {{}};
  for (std::int64_t i = 0; i < tokens; ++i) {
    std::vector<Scored> longer;
    for (const Scored& text : texts) {
      at::Tensor ids = start;
      if (i > 0) ids = at::cat({start, at::tensor(text.ids, at::kLong).unsqueeze(0)}, 1);
      const at::Tensor next = model.forward({.input_ids = ids})[0][-1].log_softmax(-1);
      for (std::int64_t id = 0; id < next.numel(); ++id) {
        longer.push_back({text.ids, text.score + next[id].item<double>()});
        longer.back().ids.push_back(id);
      }
    }
    texts = std::move(longer);
  }
  std::sort(texts.begin(), texts.end(),
            [](const Scored& a, const Scored& b) { return a.score > b.score; });
  return texts;
}

void expect_best(const Output& output, const std::vector<Scored>& texts, std::int64_t tokens) {
  const std::int64_t begin = output.sequences.size(1) - tokens;
  for (std::int64_t row = 0; row < output.sequences.size(0); ++row) {
    const Scored& expected = texts[static_cast<std::size_t>(row)];
    EXPECT_TRUE(
        output.sequences[row].narrow(0, begin, tokens).equal(at::tensor(expected.ids, at::kLong)))
        << row << output.sequences[row];
    EXPECT_NEAR((*output.sequences_scores)[row].item<double>(),
                expected.score / static_cast<double>(tokens), 1e-5);
  }
}

// Six beams are more than four words, and no two of them may be the same text. With as many beams
// as there are texts before the last token, the search leaves none out.
TEST(BeamSearch, F42MoreBeamsThanWordsGiveDistinctTexts) {
  const auto model = model_of_four_words();
  const at::Tensor start = ids_tensor({{1, 2, 3}});
  const auto run = [&](std::int64_t beams, std::int64_t returned, std::int64_t tokens) {
    return generate(
        *model, {.input_ids = start},
        {.max_new_tokens = tokens, .num_beams = beams, .num_return_sequences = returned});
  };
  expect_best(run(4, 4, 1), all_texts(*model, start, 1), 1);
  expect_best(run(6, 6, 2), all_texts(*model, start, 2), 2);
  expect_best(run(16, 6, 3), all_texts(*model, start, 3), 3);
  expect_best(run(64, 64, 4), all_texts(*model, start, 4), 4);
}

TEST(BeamSearch, F42FewerTextsThanAskedForAreAnError) {
  const auto model = model_of_four_words();
  DynamicCache cache(model->config());
  const std::string says = refusal<RuntimeError>([&] {
    generate(*model, {.input_ids = ids_tensor({{1, 2, 3}})},
             {.max_new_tokens = 1, .num_beams = 6, .num_return_sequences = 6}, &cache);
  });
  EXPECT_THAT(says, HasSubstr("row 0 can go on in no more than 4 ways until it ends, but "
                              "num_return_sequences = 6"));
  EXPECT_EQ(cache.get_seq_length(), 3);
}

TEST(BeamSearch, F42AllWordsMayBeEnds) {
  const auto model = model_of_four_words();
  const Output output = generate(*model, {.input_ids = ids_tensor({{1, 2, 3}})},
                                 {.max_new_tokens = 5,
                                  .num_beams = 3,
                                  .num_return_sequences = 3,
                                  .eos_token_id = {{0, 1, 2, 3}},
                                  .pad_token_id = 0});
  expect_best(output, all_texts(*model, ids_tensor({{1, 2, 3}}), 1), 1);
}

TEST(BeamSearch, F44BadNumbersAreErrors) {
  const auto says = [](const GenerationConfig& config) {
    return refusal<ValueError>(
        [&] { generate(checkpoint("llama"), {.input_ids = prompt()}, config); });
  };
  EXPECT_THAT(says({.num_beams = 2, .num_return_sequences = 3}),
              HasSubstr("num_return_sequences must be at most num_beams = 2, but is 3"));
  EXPECT_THAT(says({.num_return_sequences = 2}), HasSubstr("needs do_sample"));
  EXPECT_THAT(says({.do_sample = true, .num_beams = 2}), HasSubstr("needs a generator"));
}

TEST(BeamSearch, StreamersAndDraftsAreRefused) {
  CallbackStreamer streamer([](const at::Tensor&) {});
  DynamicCache cache(checkpoint("llama").config());
  const auto says = [&](const Inputs& inputs, const GenerationConfig& config) {
    return refusal<ValueError>([&] { generate(checkpoint("llama"), inputs, config, &cache); });
  };
  EXPECT_THAT(says({.input_ids = prompt(), .streamer = &streamer}, {.num_beams = 2}),
              HasSubstr("a streamer cannot follow beam search"));
  EXPECT_THAT(
      says({.input_ids = prompt(), .assistant_model = &checkpoint("llama")}, {.num_beams = 2}),
      HasSubstr("drafts are for one text, but num_beams = 2"));
  EXPECT_THAT(says({.input_ids = prompt()}, {.num_beams = 2, .prompt_lookup_num_tokens = 3}),
              HasSubstr("drafts are for one text"));
  EXPECT_EQ(cache.get_seq_length(), 0);
}

// The log-probability of every returned text, computed again.
TEST(BeamSearch, ScoresAreThoseOfTheTextsThemselves) {
  const CausalLM& model = checkpoint("mistral");
  const Output output = generate(
      model, {.input_ids = prompt()},
      {.max_new_tokens = 6, .num_beams = 4, .length_penalty = 0.5, .num_return_sequences = 4});
  const at::Tensor scores = model.forward({.input_ids = output.sequences}).log_softmax(-1);
  const at::Tensor made = output.sequences.narrow(1, 9, 6).unsqueeze(2);
  const at::Tensor sums = scores.narrow(1, 8, 6).gather(2, made).sum({1, 2}) / std::sqrt(6.0);
  EXPECT_LT(testing::difference(sums, *output.sequences_scores), 1e-4);
  EXPECT_TRUE(output.sequences_scores->equal(std::get<0>(output.sequences_scores->sort(0, true))));
}

TEST(BeamSearch, LogitsAreThoseOfTheBeamsThatTextsWentThrough) {
  const CausalLM& model = checkpoint("llama");
  GenerationConfig config{
      .max_new_tokens = 6, .num_beams = 4, .num_return_sequences = 3, .output_logits = true};
  const Output output = generate(model, {.input_ids = prompt()}, config);
  ASSERT_EQ(output.logits->sizes(), at::IntArrayRef({3, 6, 64}));
  const at::Tensor logits = model.forward({.input_ids = output.sequences});
  EXPECT_LT(testing::difference(logits.narrow(1, 8, 6), *output.logits), 1e-4);
  config.eos_token_id = {{output.sequences[0][11].item<std::int64_t>()}};
  const Output ended = generate(model, {.input_ids = prompt()}, config);
  for (std::int64_t row = 0; row < 3; ++row) {
    const at::Tensor made = ended.sequences[row].narrow(0, 9, ended.sequences.size(1) - 9);
    const at::Tensor end = made.eq(config.eos_token_id->front()).nonzero();
    const std::int64_t tokens = end.numel() > 0 ? end[0].item<std::int64_t>() + 1 : made.numel();
    const at::Tensor alone =
        model.forward({.input_ids = ended.sequences[row].narrow(0, 0, 9 + tokens).unsqueeze(0)});
    EXPECT_LT(testing::difference(alone[0].narrow(0, 8, tokens),
                                  (*ended.logits)[row].narrow(0, 0, tokens)),
              1e-4);
    const at::Tensor behind = (*ended.logits)[row].narrow(0, tokens, made.numel() - tokens);
    EXPECT_TRUE(behind.eq(0).all().item<bool>());
  }
}

TEST(BeamSearch, ShorterTextsEndInThePadToken) {
  const CausalLM& model = checkpoint("llama");
  GenerationConfig config{.max_new_tokens = 8, .num_beams = 3, .num_return_sequences = 3};
  const at::Tensor free = generate(model, {.input_ids = prompt()}, config).sequences;
  config.eos_token_id = {{free[0][12].item<std::int64_t>()}};
  config.pad_token_id = 0;
  const at::Tensor padded = generate(model, {.input_ids = prompt()}, config).sequences;
  config.pad_token_id.reset();
  const at::Tensor by_default = generate(model, {.input_ids = prompt()}, config).sequences;
  const at::Tensor other = padded.ne(by_default);
  EXPECT_TRUE(other.any().item<bool>());
  EXPECT_TRUE(padded.masked_select(other).eq(0).all().item<bool>());
  EXPECT_TRUE(by_default.masked_select(other).eq(config.eos_token_id->front()).all().item<bool>());
}

TEST(BeamSearch, StopStringsEndTexts) {
  const CausalLM& model = checkpoint("llama");
  std::vector<std::string> table;
  for (std::int64_t id = 0; id < 64; ++id) table.push_back("<" + std::to_string(id) + ">");
  GenerationConfig config{.max_new_tokens = 8, .num_beams = 3, .num_return_sequences = 3};
  const at::Tensor free = generate(model, {.input_ids = prompt()}, config).sequences;
  const auto end = free[0][12].item<std::int64_t>();
  config.pad_token_id = 0;
  GenerationConfig strings = config;
  config.eos_token_id = {{end}};
  strings.stop_strings = {{table[static_cast<std::size_t>(end)]}};
  const Output by_id = generate(model, {.input_ids = prompt()}, config);
  const Output by_string =
      generate(model, {.input_ids = prompt(), .text = testing::table_text(table)}, strings);
  EXPECT_TRUE(by_string.sequences.equal(by_id.sequences)) << by_string.sequences << by_id.sequences;
  EXPECT_TRUE(by_string.sequences_scores->equal(*by_id.sequences_scores));
  // Over two tokens.
  const std::string third = table[static_cast<std::size_t>(free[0][11].item<std::int64_t>())];
  strings.stop_strings = {{third.substr(1) + table[static_cast<std::size_t>(end)].substr(0, 2)}};
  strings.num_return_sequences = 1;
  strings.early_stopping = EarlyStopping::yes;
  strings.length_penalty = -4;
  const at::Tensor made =
      generate(model, {.input_ids = prompt(), .text = testing::table_text(table)}, strings)
          .sequences;
  EXPECT_TRUE(made.equal(free.narrow(0, 0, 1).narrow(1, 0, made.size(1)))) << made;
  EXPECT_EQ(made.size(1), 13);
}

// Seeded draws go on from the generator that was given.
TEST(BeamSearch, BeamSamplingIsSeeded) {
  const CausalLM& model = checkpoint("llama");
  const GenerationConfig config{
      .max_new_tokens = 8, .do_sample = true, .num_beams = 3, .num_return_sequences = 2};
  const auto made = [&](std::uint64_t seed) {
    return generate(model, {.input_ids = prompt(), .generator = make_generator(seed)}, config)
        .sequences;
  };
  EXPECT_TRUE(made(5).equal(made(5)));
  EXPECT_FALSE(made(5).equal(made(6)));
}

}  // namespace
}  // namespace kvcache
