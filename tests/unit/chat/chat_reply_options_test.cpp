// What generate() takes beside a text, a session's replies take too: stop strings, processors and
// drafts.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvcache/cache/static_cache.h"
#include "kvcache/chat/chat_session.h"
#include "kvcache/chat/tokenizer_text.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/runner.h"
#include "tests/support/char_tokenizer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/unit/chat/sessions.h"

namespace kvcache {
namespace {

using testing::char_tokenizer;
using testing::checkpoint;
using testing::fresh_reply;
using ::testing::HasSubstr;
using testing::kReplyConfig;
using testing::kTemplate;
using testing::refusal;
using testing::session;
using testing::with;

// What generate() makes of a first turn "Hello".
struct Generated {
  std::string text;
  std::int64_t tokens;
};

Generated generated(const CausalLM& model, const GenerationConfig& config, Inputs inputs = {}) {
  const Tokenizer tokenizer = char_tokenizer();
  const auto ids = tokenizer.encode("<s><u>Hello<e><a>", {.add_special_tokens = false});
  inputs.input_ids = at::tensor(ids, at::kLong).unsqueeze(0);
  inputs.text = running_text(tokenizer);
  const at::Tensor row = generate(model, inputs, config).sequences[0].contiguous();
  const std::span all(row.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(row.numel()));
  const auto made = all.subspan(ids.size());
  return {tokenizer.decode(made, {.skip_special_tokens = true}),
          static_cast<std::int64_t>(made.size())};
}

// Lets nothing be chosen but one token.
class Only final : public LogitsProcessor {
 public:
  explicit Only(std::int64_t token) : token_(token) {}

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    at::Tensor result = at::full_like(scores, detail::kMinusInfinity);
    result.select(1, token_).fill_(0);
    return result;
  }

 private:
  std::int64_t token_;
};

class ChatReplies : public ::testing::TestWithParam<const char*> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam()); }
};

TEST_P(ChatReplies, AStopStringEndsThemAsItEndsGenerate) {
  const GenerationConfig free{.max_new_tokens = 12};
  const std::string all = generated(model(), free).text;
  ASSERT_GE(all.size(), 6);
  for (const std::string& stop : {all.substr(3, 1), all.substr(2, 3)}) {
    GenerationConfig config = free;
    config.stop_strings = {{stop, "never said"}};
    const Generated expected = generated(model(), config);
    ASSERT_LT(expected.tokens, 12) << stop;
    ChatSession chat = session(model(), kTemplate, nullptr, {.generation = config});
    std::string streamed;
    const ChatReply reply =
        chat.send("Hello", {.on_text = [&](std::string_view text) { streamed += text; }});
    EXPECT_EQ(reply.text, expected.text);
    EXPECT_EQ(streamed, expected.text);
    EXPECT_THAT(reply.text, ::testing::EndsWith(stop));
    EXPECT_EQ(reply.new_tokens, expected.tokens);
    for (const char* text : {"and then?", "more"}) {
      const std::string next = fresh_reply(model(), with(chat.messages(), text), kTemplate, config);
      EXPECT_EQ(chat.send(text).text, next);
    }
  }
}

// Special tokens are no text of a reply, but a stop string can spell one.
TEST_P(ChatReplies, AStopStringMayBeASpecialToken) {
  GenerationConfig config{.max_new_tokens = 12};
  config.stop_strings = {{"<u>"}};
  ChatSession chat = session(model(), kTemplate, nullptr, {.generation = config});
  const ChatReply reply = chat.send("Hello", {.logits_processors = {std::make_shared<Only>(61)}});
  EXPECT_EQ(reply.text, "");
  EXPECT_EQ(reply.new_tokens, 1);
}

TEST_P(ChatReplies, ProcessorsHoldForOneReply) {
  ChatSession chat = session(model());
  EXPECT_EQ(chat.send("Hello", {.logits_processors = {std::make_shared<Only>(25)}}).text, "zzzzzz");
  const std::string expected = fresh_reply(model(), with(chat.messages(), "more"));
  EXPECT_EQ(chat.send("more").text, expected);
}

TEST_P(ChatReplies, DraftsOfAModelChangeNothing) {
  GenerationConfig config{.max_new_tokens = 10};
  const std::string first = fresh_reply(model(), with({}, "Hello"), kTemplate, config);
  config.num_assistant_tokens = 3;
  config.assistant_confidence_threshold = 0;
  for (const CausalLM* assistant : {&model(), &checkpoint("llama"), &checkpoint("lfm2")}) {
    ChatSession chat = session(model(), kTemplate, nullptr, {.generation = config});
    const ChatReplyOptions drafted{.assistant_model = assistant};
    EXPECT_EQ(chat.send("Hello", drafted).text, first);
    EXPECT_EQ(chat.regenerate(drafted).text, first);
    const std::string next =
        fresh_reply(model(), with(chat.messages(), "th th"), kTemplate, config);
    EXPECT_EQ(chat.send("th th", drafted).text, next);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChatReplies, ::testing::Values("llama", "mistral", "lfm2"),
                         [](const auto& of) { return std::string(of.param); });

TEST(ChatReplyOptions, AnAssistantThatDoesNotFitIsRefused) {
  GenerationConfig config = kReplyConfig;
  config.prompt_lookup_num_tokens = 3;
  const CausalLM& model = checkpoint("llama");
  ChatSession chat = session(model, kTemplate, nullptr, {.generation = config});
  chat.send("Hello");
  EXPECT_THAT(refusal<ValueError>([&] { chat.send("more", {.assistant_model = &model}); }),
              HasSubstr("leave out one of them"));
  EXPECT_EQ(chat.messages().size(), 2);
}

// A ring makes room to take tokens back before it holds any: a session sees to it.
TEST(ChatReplyOptions, PromptLookupOverEveryKindOfCache) {
  GenerationConfig config{.max_new_tokens = 12};
  GenerationConfig drafted = config;
  drafted.prompt_lookup_num_tokens = 3;
  for (const char* name : {"llama", "mistral", "gemma3_text", "llama4_text", "lfm2", "mamba2"}) {
    for (const bool fixed : {false, true}) {
      if (fixed && std::string(name) == "mamba2") continue;  // a static cache has no such layers
      const CausalLM& model = checkpoint(name);
      std::unique_ptr<Cache> cache;
      if (fixed) {
        cache =
            std::make_unique<StaticCache>(model.config(), StaticCacheOptions{.max_cache_len = 160});
      }
      Cache* held = cache.get();
      ChatSession chat = session(model, kTemplate, std::move(cache), {.generation = drafted});
      for (const char* text : {"ab ab ab", "abc abc", "no", "ab ab"}) {
        const std::string expected =
            fresh_reply(model, with(chat.messages(), text), kTemplate, config);
        EXPECT_EQ(chat.send(text).text, expected) << name << fixed << text;
      }
      const std::string last = chat.messages().back().content;
      EXPECT_EQ(chat.regenerate().text, last) << name << fixed;
      if (held == nullptr) continue;
      model.forward({.input_ids = at::full({1, 3}, 5, at::kLong)}, held);
      EXPECT_TRUE(held->can_crop(3)) << name;
    }
  }
}

}  // namespace
}  // namespace kvcache
