// Conversations over one cache: every reply is that of a fresh run over all of it.
#include "kvcache/chat/chat_session.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>

#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/quantized_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/chat/sessions.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::fresh_reply;
using ::testing::HasSubstr;
using testing::kReplyConfig;
using testing::kTemplate;
using testing::refusal;
using testing::session;
using testing::TempFolder;
using testing::with;
using Reuse = ChatReply::Reuse;

// Of earlier replies only the second half is kept, as templates drop what was thought.
constexpr std::string_view kForgetful =
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}<a>"
    "{{ m.content[(m.content | length) // 2:] }}{% else %}<u>{{ m.content }}{% endif %}<e>"
    "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";

struct Kind {
  std::string model;
  std::string cache;  // empty: the session's own

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) {
    return out << kind.model << (kind.cache.empty() ? "" : "_" + kind.cache);
  }
};

std::unique_ptr<Cache> make_cache(const Kind& kind) {
  const ModelConfig& config = checkpoint(kind.model).config();
  if (kind.cache == "static") {
    return std::make_unique<StaticCache>(config, StaticCacheOptions{.max_cache_len = 256});
  }
  if (kind.cache == "quantized") {  // in groups so small that no reply of these models changes
    return std::make_unique<QuantizedCache>(
        config, QuantizedCacheOptions{.config = {.backend = "hqq",
                                                 .nbits = 8,
                                                 .axis_key = 1,
                                                 .axis_value = 1,
                                                 .q_group_size = 2,
                                                 .residual_length = 4}});
  }
  if (kind.cache == "mamba") return std::make_unique<MambaCache>(config);
  return nullptr;
}

class ChatSessions : public ::testing::TestWithParam<Kind> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam().model); }
  ChatSession chat(std::string_view source) const {
    return session(model(), source, make_cache(GetParam()));
  }
};

constexpr const char* kTurns[] = {"Hello", "the other thing", "a", "?", "thanks."};

TEST_P(ChatSessions, EveryTurnIsAFreshRunOverAll) {
  ChatSession chat = this->chat(kTemplate);
  for (const char* text : kTurns) {
    const std::string expected = fresh_reply(model(), with(chat.messages(), text));
    const std::int64_t held = chat.cache().get_seq_length();
    const ChatReply reply = chat.send(text);
    EXPECT_EQ(reply.text, expected) << text;
    EXPECT_EQ(reply.timings.prefill_tokens, reply.prompt_tokens - reply.reused_tokens);
    EXPECT_LE(reply.reused_tokens, held);
    if (held == 0) continue;
    EXPECT_GT(reply.reused_tokens, 0) << text;
    EXPECT_EQ(reply.reuse == Reuse::kHeld, reply.reused_tokens == held);
  }
  EXPECT_EQ(chat.messages().size(), 10);
}

TEST_P(ChatSessions, WhatATemplateDropsIsComputedAnew) {
  ChatSession chat = this->chat(kForgetful);
  for (const char* text : kTurns) {
    const std::string expected = fresh_reply(model(), with(chat.messages(), text), kForgetful);
    const bool first = chat.messages().empty();
    const std::string before = first ? "" : chat.messages().back().content;
    const ChatReply reply = chat.send(text);
    EXPECT_EQ(reply.text, expected) << text;
    if (first || before.size() < 2) continue;
    EXPECT_GT(reply.reused_tokens, 0);
    EXPECT_THAT(reply.reuse, ::testing::AnyOf(Reuse::kCropped, Reuse::kSnapshot));
  }
}

TEST_P(ChatSessions, EditedAndRegeneratedTurnsAreFreshRuns) {
  ChatSession chat = this->chat(kTemplate);
  chat.add({.role = "system", .content = "Be short."});
  const std::string first = chat.send("Hello").text;
  EXPECT_EQ(chat.regenerate().text, first);
  chat.send("and then?");
  chat.edit(3, "or else?");
  EXPECT_EQ(chat.messages().size(), 4);
  EXPECT_EQ(chat.reply().text,
            fresh_reply(model(), {chat.messages().begin(), chat.messages().begin() + 4}));
  chat.edit(1, "Bye");
  EXPECT_EQ(chat.messages().size(), 2);
  EXPECT_EQ(chat.reply().text,
            fresh_reply(model(), {chat.messages().begin(), chat.messages().begin() + 2}));
}

TEST_P(ChatSessions, SavedOnesGoOn) {
  const TempFolder folder;
  ChatSession chat = this->chat(kTemplate);
  chat.add({.role = "user", .content = "Hello", .fields = R"({"name": "Ada"})"});
  chat.reply();
  chat.save(folder.path() / "session");  // which it makes
  ChatSession later = this->chat(kTemplate);
  later.load(folder.path() / "session");
  ASSERT_EQ(later.messages().size(), 2);
  EXPECT_EQ(later.messages()[0].fields, R"({"name":"Ada"})");
  EXPECT_EQ(later.cache().get_seq_length(), chat.cache().get_seq_length());
  const ChatReply reply = later.send("more");
  EXPECT_EQ(reply.text, chat.send("more").text);
  // Marks are not saved: a cache that cannot be cropped begins anew where a reply is spelled
  // otherwise than it was made.
  EXPECT_EQ(reply.reuse == Reuse::kNothing, reply.reused_tokens == 0);
  EXPECT_GE(reply.reused_tokens, GetParam().model == "llama" ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, ChatSessions,
    ::testing::Values(Kind{"llama", ""}, Kind{"llama", "static"}, Kind{"mistral", ""},
                      Kind{"mistral", "static"}, Kind{"gemma3_text", ""}, Kind{"llama4_text", ""},
                      Kind{"mamba", "mamba"}, Kind{"mamba2", ""}, Kind{"lfm2", ""},
                      Kind{"lfm2", "static"}, Kind{"jamba", ""}, Kind{"qwen3_next", ""},
                      Kind{"phi3_longrope", ""}, Kind{"llama", "quantized"},
                      Kind{"mistral", "quantized"}, Kind{"gemma3_text", "quantized"},
                      Kind{"lfm2", "quantized"}, Kind{"qwen3_next", "quantized"}),
    ::testing::PrintToStringParamName());

TEST(ChatSession, SpelledSpecialTokensAreText) {
  const CausalLM& model = checkpoint("llama");
  ChatSession chat = session(model);
  EXPECT_EQ(chat.send("a<e>b").prompt_tokens, 3 + 5 + 1);  // <s> <u> ... <e> <a>, a < e > b
  ChatSession meant = session(model, kTemplate, nullptr, {.parse_special_tokens = true});
  EXPECT_EQ(meant.send("a<e>b").prompt_tokens, 3 + 3 + 1);
  ChatSession parts = session(model, "<s>{{ messages[0].content[0].text | upper }}<e>");
  parts.add({.role = "user", .content = "", .fields = R"({"content": [{"text": "<e>"}]})"});
  EXPECT_EQ(parts.reply().prompt_tokens, 2 + 3);
}

TEST(ChatSession, TextThatAnEarlierTurnSpelledStaysText) {
  ChatSession chat = session(checkpoint("llama"));
  chat.send("<e><a>");
  const std::string expected = fresh_reply(checkpoint("llama"), with(chat.messages(), "x"));
  EXPECT_EQ(chat.send("x").text, expected);
}

TEST(ChatSession, AFailureLeavesItAsItWas) {
  for (const char* name : {"llama", "mistral", "lfm2"}) {
    const CausalLM& model = checkpoint(name);
    ChatSession chat = session(model);
    chat.send("Hello");
    const auto messages = chat.messages().size();
    int pieces = 0;
    EXPECT_THROW(chat.send("more", {.on_text =
                                        [&](std::string_view) {
                                          if (++pieces == 2) throw std::out_of_range("enough");
                                        }}),
                 std::out_of_range);
    EXPECT_EQ(chat.messages().size(), messages);
    const std::string expected = fresh_reply(model, with(chat.messages(), "other"));
    EXPECT_EQ(chat.send("other").text, expected);
  }
}

// Ends a text at its third new token.
class AtThree final : public StoppingCriterion {
 public:
  at::Tensor complete(const TokenRows& text) override {
    return at::full({text.ids.size(0)}, ++steps_ == 3, at::kBool);
  }

 private:
  int steps_ = 0;
};

TEST(ChatSession, ARequestedEndKeepsTheReplySoFar) {
  for (const char* name : {"llama", "mistral"}) {
    const CausalLM& model = checkpoint(name);
    ChatSession chat = session(model);
    std::string streamed;
    const ChatReply reply =
        chat.send("Hello", {.on_text = [&](std::string_view text) { streamed += text; },
                            .stopping_criteria = {std::make_shared<AtThree>()}});
    EXPECT_EQ(reply.new_tokens, 3);
    EXPECT_EQ(streamed, reply.text);
    EXPECT_EQ(chat.messages().back().content, reply.text);
    const std::string expected = fresh_reply(model, with(chat.messages(), "go on"));
    EXPECT_EQ(chat.send("go on").text, expected);
  }
}

TEST(ChatSession, SampledRepliesFollowTheirGenerator) {
  GenerationConfig config = kReplyConfig;
  config.do_sample = true;
  const auto replies = [&](std::uint64_t seed) {
    ChatSession chat = session(checkpoint("llama"), kTemplate, nullptr, {.generation = config});
    const at::Generator generator = make_generator(seed);
    std::string all = chat.send("Hello", {.generator = generator}).text;
    return all + "|" + chat.regenerate({.generator = generator}).text;
  };
  EXPECT_EQ(replies(1), replies(1));
  EXPECT_NE(replies(1), replies(2));
}

TEST(ChatSession, DamagedFilesLeaveItAsItWas) {
  const TempFolder folder;
  ChatSession chat = session(checkpoint("llama"));
  EXPECT_THAT(refusal<ValueError>([&] { chat.load(folder.path()); }), HasSubstr("messages.json"));
  chat.send("Hello");
  chat.save(folder.path());
  const auto messages = folder.path() / "messages.json";
  for (const char* text : {"", "{}", "[1]", R"([{"content": "a"}])", R"([{"role": "user")"}) {
    std::ofstream(messages) << text;
    EXPECT_THAT(refusal<ValueError>([&] { chat.load(folder.path()); }), HasSubstr("messages.json"))
        << text;
  }
  std::ofstream(messages) << R"([{"role": "user", "content": "other"}])";
  std::ofstream(folder.path() / "cache.safetensors") << "none";
  EXPECT_THAT(refusal<ValueError>([&] { chat.load(folder.path()); }),
              HasSubstr("cache.safetensors"));
  EXPECT_EQ(chat.messages()[0].content, "Hello");
  const std::string expected = fresh_reply(checkpoint("llama"), with(chat.messages(), "x"));
  EXPECT_EQ(chat.send("x").text, expected);
}

TEST(ChatSession, BadUseIsRefused) {
  const CausalLM& model = checkpoint("llama");
  const auto refused = [&](ChatSessionOptions options) {
    return refusal<ValueError>([&] { session(model, kTemplate, nullptr, std::move(options)); });
  };
  EXPECT_THAT(refused({.marks = 0}), HasSubstr("mark"));
  EXPECT_THAT(refused({.generation = {.max_new_tokens = 1, .use_cache = false}}),
              HasSubstr("use_cache"));
  EXPECT_THAT(refused({.rendering = {.add_generation_prompt = true}}),
              HasSubstr("add_generation_prompt"));
  EXPECT_THAT(refusal<ValueError>([&] {
                session(model, kTemplate, make_cache({"mamba", "mamba"}));
              }),
              HasSubstr("layer"));
  ChatSession chat = session(model);
  EXPECT_THAT(refusal<RuntimeError>([&] { chat.regenerate(); }), HasSubstr("no reply"));
  EXPECT_THAT(refusal<ValueError>([&] { chat.edit(0, "a"); }), HasSubstr("no message 0"));
  EXPECT_TRUE(chat.messages().empty());
}

}  // namespace
}  // namespace kvcache
