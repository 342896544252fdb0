// The guide's programs about generate() itself: they print what the library gives, by ways of its
// own here: without a cache, and chosen by hand.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/cli/program.h"
#include "tests/support/char_tokenizer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using Ids = std::vector<std::int64_t>;

Ids ids_of(const at::Tensor& row) {
  const at::Tensor ids = row.contiguous();
  return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel()};
}

std::string spelled(const Ids& ids) {
  std::string text;
  for (const std::int64_t id : ids) text += " " + std::to_string(id);
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return lines;
}

// The text that follows `ids` with the best token each time, but for the one before it if
// `never_twice`.
Ids by_hand(const CausalLM& model, Ids ids, std::size_t new_tokens, bool never_twice = false) {
  for (std::size_t i = 0; i < new_tokens; ++i) {
    const at::Tensor text = at::tensor(ids, at::kLong).unsqueeze(0);
    at::Tensor scores = model.forward({.input_ids = text, .logits_to_keep = 1}).flatten();
    if (never_twice) scores[ids.back()] = scores.min();
    ids.push_back(scores.argmax().item<std::int64_t>());
  }
  return ids;
}

using GenerationExamples = ProgramTest;

TEST_F(GenerationExamples, SamplingDrawsAsTheLibraryDoes) {
  const CausalLM& model = checkpoint("llama");
  const std::string folder = KVCACHE_TEST_DATA_DIR "/parity/checkpoints/llama";
  const ProgramResult result = run_program(KVCACHE_EXAMPLES_DIR "/sampling", {folder});
  ASSERT_EQ(result.code, 0) << result.error;

  Inputs inputs{.input_ids = ids_tensor({{5, 8, 9, 10}})};
  GenerationConfig config{.max_new_tokens = 12,
                          .do_sample = true,
                          .temperature = 0.8,
                          .top_k = 0,
                          .top_p = 0.95,
                          .use_cache = false,
                          .eos_token_id = {{2}},
                          .pad_token_id = 0};
  const auto drawn = [&](std::uint64_t seed) {
    inputs.generator = make_generator(seed);
    return spelled(ids_of(generate(model, inputs, config).sequences[0]));
  };
  const std::string second = drawn(2), first = drawn(1);
  EXPECT_NE(first, second);
  config.num_return_sequences = 3;
  const at::Tensor three = generate(model, inputs, config).sequences;  // the same generator
  const Ids greedy = by_hand(model, {5, 8, 9, 10}, 12);
  const Ids changing = by_hand(model, {5, 8, 9, 10}, 12, /*never_twice=*/true);
  EXPECT_NE(changing, greedy);
  EXPECT_EQ(std::count(greedy.begin(), greedy.end(), 2), 0);  // no end token
  EXPECT_EQ(std::count(changing.begin(), changing.end(), 2), 0);
  EXPECT_THAT(
      lines_of(result.out),
      ::testing::ElementsAre("seed 1:" + first, "seed 2:" + second, "seed 1:" + first,
                             "one of three:" + spelled(ids_of(three[0])),
                             "one of three:" + spelled(ids_of(three[1])),
                             "one of three:" + spelled(ids_of(three[2])),
                             "greedy:" + spelled(greedy), "never twice:" + spelled(changing)));
}

// A tiny checkpoint whose tokens are characters, without end tokens at first.
class StreamingExample : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(
          KVCACHE_TEST_DATA_DIR "/parity/checkpoints/llama/" + std::string(file), folder_ / file);
    }
    write("tokenizer.json", char_tokenizer_json());
    write("generation_config.json", "{}");
    const Ids prompt = tokenizer_.encode(kPrompt);
    all_ = by_hand(checkpoint("llama"), prompt, 24);
    new_ids_.assign(all_.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all_.end());
  }

  // Expects what the program says of the first `tokens` new tokens, of which `shown` are text.
  void expect_text(const std::vector<std::string>& stop_strings, std::size_t tokens,
                   std::size_t shown) const {
    std::vector<std::string> arguments = {folder_.string(), kPrompt};
    arguments.insert(arguments.end(), stop_strings.begin(), stop_strings.end());
    const ProgramResult result = run_program(KVCACHE_EXAMPLES_DIR "/streaming", arguments);
    ASSERT_EQ(result.code, 0) << result.error;
    const std::vector<std::string> lines = lines_of(result.out);
    ASSERT_EQ(lines.size(), 5U) << result.out;
    EXPECT_EQ(lines[0], text(shown));
    EXPECT_EQ(lines[1], "[" + std::to_string(tokens) + " tokens]");
    std::string pieces;
    for (std::size_t i = 0; i < tokens; ++i)
      pieces += tokenizer_.decode(std::span(&new_ids_[i], 1)) + "|";
    EXPECT_EQ(lines[3], pieces);
    EXPECT_EQ(lines[4], "[the same text]");

    // The other end: at the first token that was there before, if none of the config's comes first.
    std::size_t until = 1;
    const auto first = all_.end() - static_cast<std::ptrdiff_t>(new_ids_.size());
    const auto is_new = [&](std::size_t i) {
      const auto newest = first + static_cast<std::ptrdiff_t>(i);
      return std::find(all_.begin(), newest, *newest) == newest;
    };
    while (until < tokens && is_new(until - 1)) ++until;
    EXPECT_LT(until, 24U);
    std::string expected = spelled({new_ids_.begin(), new_ids_.begin() + std::ptrdiff_t(until)});
    EXPECT_EQ(lines[2], expected.substr(1) + " [at a repetition]");
  }

  // Of the first new tokens.
  std::string text(std::size_t tokens) const {
    return tokenizer_.decode(std::span(new_ids_).first(tokens));
  }

  static constexpr const char* kPrompt = "Hello";
  const Tokenizer tokenizer_ = char_tokenizer();
  Ids all_, new_ids_;
};

TEST_F(StreamingExample, GoesOnToMaxNewTokens) { expect_text({}, 24, 24); }

// The token in which the string ends is the last one, and shown.
TEST_F(StreamingExample, EndsWithAStopString) {
  const std::string all = text(24);
  const std::string stop = all.substr(9, 3);  // "<<s" of "<" and "<s>"
  std::size_t tokens = 1;
  while (text(tokens).find(stop) == std::string::npos) ++tokens;
  EXPECT_LT(tokens, 24U);
  EXPECT_FALSE(text(tokens).ends_with(stop));
  expect_text({"no such text", stop}, tokens, tokens);
  // Begun by the prompt.
  expect_text({"lo" + all.substr(0, 1)}, 1, 1);
}

// The end token is a token of the text, but is not shown by a TextStreamer that knows it.
TEST_F(StreamingExample, EndsAtAnEndToken) {
  const std::int64_t end = new_ids_[9];
  const auto first = std::find(new_ids_.begin(), new_ids_.end(), end);
  const auto tokens = static_cast<std::size_t>(first - new_ids_.begin()) + 1;
  EXPECT_GT(tokens, 4U);
  write("generation_config.json", R"({"eos_token_id": )" + std::to_string(end) + "}");
  expect_text({}, tokens, tokens - 1);
}

}  // namespace
}  // namespace kvcache::testing
