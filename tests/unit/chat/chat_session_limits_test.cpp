// What a conversation refuses or must withstand: messages and files from outside, caches, marks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/chat/chat_session.h"
#include "kvcache/core/errors.h"
#include "tests/support/char_tokenizer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::char_tokenizer;
using testing::checkpoint;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using testing::refusal;
using testing::TempFolder;

constexpr std::string_view kTemplate =
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}<a>{% else %}<u>{% endif %}"
    "{{ m.content }}<e>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";

constexpr int kDeep = 1'000'000;

const GenerationConfig kConfig{.max_new_tokens = 6, .eos_token_id = {{63}}};

ChatSession session(const CausalLM& model, std::unique_ptr<Cache> cache = nullptr,
                    std::string_view source = kTemplate, GenerationConfig config = kConfig) {
  return {model, char_tokenizer(), ChatTemplate::from_string(source),
          ChatSessionOptions{.generation = std::move(config)}, std::move(cache)};
}

std::string fresh_reply(const CausalLM& model, const std::string& text) {
  return session(model).send(text).text;
}

std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(ChatSessionMessages, FieldsNestWithinALimit) {
  ChatSession chat = session(checkpoint("llama"));
  chat.add({.role = "user", .content = "a", .fields = "{\"x\": " + nested(99) + "}"});
  const auto added = [&](const std::string& fields) {
    return refusal<ValueError>([&] { chat.add({"user", "a", fields}); });
  };
  EXPECT_THAT(added("{\"x\": " + nested(100) + "}"),
              HasSubstr("messages[1].fields nests deeper than 100 levels"));
  EXPECT_THAT(added("{\"x\": " + nested(kDeep) + "}"), HasSubstr("nests deeper than 100 levels"));
  EXPECT_THAT(added("{\"x\": 1"), HasSubstr("messages[1].fields is not valid JSON"));
  EXPECT_THAT(added("[]"), HasSubstr("messages[1].fields is no JSON object"));
  EXPECT_EQ(chat.messages().size(), 1);
  chat.reply();
}

TEST(ChatSessionMessages, AFileNestsWithinALimit) {
  const TempFolder folder;
  ChatSession chat = session(checkpoint("llama"));
  chat.send("Hello");
  chat.save(folder.path());
  for (const std::string& text : {R"([{"role": "user", "x": )" + nested(kDeep) + "}]",
                                  nested(kDeep), std::string(kDeep, '[')}) {
    write(folder.path() / "messages.json", text);
    EXPECT_THAT(refusal<ValueError>([&] { chat.load(folder.path()); }),
                AllOf(HasSubstr("messages.json"), HasSubstr("nests deeper than 100 levels")));
  }
  EXPECT_EQ(chat.messages().size(), 2);
}

TEST(ChatSessionMessages, ManyFieldsTakeTimeInProportion) {
  const TempFolder folder;
  std::string fields = "{\"x\": 0";
  for (int i = 0; i < 100'000; ++i) fields += ", \"key " + std::to_string(i) + "\": 0";
  fields += "}";
  const std::clock_t start = std::clock();
  ChatSession chat = session(checkpoint("llama"));
  chat.add({.role = "user", .content = "a", .fields = fields});
  chat.reply();
  chat.save(folder.path());
  ChatSession later = session(checkpoint("llama"));
  later.load(folder.path());
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 30);
  EXPECT_EQ(json::parse(later.messages()[0].fields), json::parse(fields));
}

TEST(ChatSessionMessages, KeysThatSpellSpecialTokensAreText) {
  ChatSession chat = session(checkpoint("llama"), nullptr,
                             "<s>{% for key in messages[0].x %}{{ key }}{% endfor %}");
  chat.add({.role = "user", .content = "", .fields = R"({"x": {"<e>": 1, "ab": [{"<a>": 2}]}})"});
  EXPECT_EQ(chat.reply().prompt_tokens, 1 + 3 + 2);
}

TEST(ChatSessionMessages, WhatCouldNotBeReadBackIsRefused) {
  const CausalLM& model = checkpoint("llama");
  ChatSession chat = session(model);
  chat.send("Hello");
  const auto added = [&](ChatMessage message) {
    return refusal<ValueError>([&] { chat.add(std::move(message)); });
  };
  EXPECT_THAT(added({"", "a"}), HasSubstr("messages[2] has no role"));
  for (const char* role : {"\"\"", "null", "5", "[\"user\"]"}) {
    EXPECT_THAT(added({"user", "a", std::string("{\"role\": ") + role + "}"}),
                HasSubstr("messages[2] has no role"));
  }
  EXPECT_THAT(added({"user\xFF", "a"}), HasSubstr("messages[2].role is no UTF-8 at byte 4"));
  EXPECT_THAT(added({"user", "ab\xFF"}), HasSubstr("messages[2].content is no UTF-8 at byte 2"));
  EXPECT_THAT(added({"user", "a", "{\"x\": \"\xFF\"}"}), HasSubstr("messages[2].fields"));
  EXPECT_THAT(refusal<ValueError>([&] { chat.send("\xE4\xBD"); }), HasSubstr("messages[2]"));
  EXPECT_THAT(refusal<ValueError>([&] { chat.edit(0, "\xFF"); }),
              HasSubstr("messages[0].content is no UTF-8 at byte 0"));
  ASSERT_EQ(chat.messages().size(), 2);
  EXPECT_EQ(chat.messages()[0].content, "Hello");
}

TEST(ChatSessionMessages, ComeBackFromTheirFileAsTheyWere) {
  const TempFolder folder;
  ChatSession chat = session(checkpoint("llama"));
  chat.add({"system", "line\n\"quoted\" \\ \u00E9\U0001F600 \u0001"});
  chat.add({"user", "", R"({"content":[{"type":"text","text":"hi"},{}],"n":1.5,"i":-7,"e":[]})"});
  chat.add({"user", "b", R"({"big":9007199254740993,"far":1e+300,"no":null,"yes":true})"});
  chat.add({"user", "c", R"({"role":"tool","content":null})"});
  chat.save(folder.path());
  ChatSession later = session(checkpoint("llama"));
  later.load(folder.path());
  ASSERT_EQ(later.messages().size(), 4);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(later.messages()[i].role, chat.messages()[i].role);
    EXPECT_EQ(later.messages()[i].content, chat.messages()[i].content);
    EXPECT_EQ(later.messages()[i].fields, chat.messages()[i].fields);
  }
  EXPECT_EQ(later.messages()[3].role, "tool");  // as every template saw it
  EXPECT_EQ(later.messages()[3].fields, R"({"content":null})");
}

TEST(ChatSessionMessages, TheirFileIsPlainJson) {
  const TempFolder folder;
  ChatSession chat = session(checkpoint("llama"));
  chat.add({"user", "a\n", R"({"parts":[1,{}]})"});
  chat.save(folder.path());
  std::stringstream content;
  content << std::ifstream(folder.path() / "messages.json").rdbuf();
  EXPECT_EQ(content.str(), R"([
  {
    "role": "user",
    "content": "a\n",
    "parts": [
      1,
      {}
    ]
  }
]
)");
}

// A cache for llama that update() fed.
DynamicCache of_unknown_tokens(const CausalLM& model) {
  DynamicCache cache(model.config());
  std::int64_t layer = 0;
  for (const LayerSpec& spec : model.config().layer_specs()) {
    const at::Tensor states = at::zeros({1, spec.kv_heads, 3, spec.key_dim}, model.dtype());
    cache.update(states, states, layer++);
  }
  return cache;
}

TEST(ChatSessionCache, ItsTokensMustBeKnownAndOfOneRow) {
  const CausalLM& model = checkpoint("llama");
  EXPECT_THAT(refusal<ValueError>([&] { session(model, of_unknown_tokens(model).clone()); }),
              HasSubstr("does not know which tokens it holds"));
  EXPECT_THAT(refusal<ValueError>(
                  [&] { session(model, std::make_unique<EncoderDecoderCache>(model.config())); }),
              HasSubstr("no encoder"));

  const TempFolder folder;
  ChatSession chat = session(model);
  const std::string first = chat.send("Hello").text;
  chat.save(folder.path());
  const std::int64_t held = chat.cache().get_seq_length();
  DynamicCache unknown = of_unknown_tokens(model), two(model.config());
  model.forward({.input_ids = at::ones({2, 3}, at::kLong)}, &two);
  for (const auto& [cache, reason] :
       {std::pair{&unknown, "does not say which tokens it holds"}, {&two, "a cache of 2 rows"}}) {
    save_cache(*cache, folder.path() / "cache.safetensors", {.fingerprint = model.fingerprint()});
    EXPECT_THAT(refusal<ValueError>([&] { chat.load(folder.path()); }),
                AllOf(HasSubstr("cache.safetensors"), HasSubstr(reason)));
    EXPECT_EQ(chat.cache().get_seq_length(), held);
  }
  EXPECT_EQ(chat.messages().size(), 2);
  EXPECT_EQ(chat.regenerate().text, first);
}

TEST(ChatSessionOptionsChecks, ACriterionThatIsNull) {
  for (const char* name : {"llama", "lfm2"}) {
    const CausalLM& model = checkpoint(name);
    ChatSession chat = session(model);
    EXPECT_THAT(refusal<ValueError>([&] { chat.send("Hello", {.stopping_criteria = {nullptr}}); }),
                HasSubstr("stopping_criteria[0] is null"));
    EXPECT_TRUE(chat.messages().empty());
    EXPECT_EQ(chat.send("more").text, fresh_reply(model, "more"));
  }
}

TEST(ChatSessionMarks, OnesMadeAgainAreKeptOnce) {
  const CausalLM& model = checkpoint("lfm2");
  const auto first_turn_again = [&](int regenerated) {
    ChatSession chat = session(model);
    const std::string first = chat.send("Hello").text;
    chat.send("more");
    for (int i = 0; i < regenerated; ++i) chat.regenerate();
    chat.edit(0, "Hello");
    const ChatReply reply = chat.reply();
    EXPECT_EQ(reply.text, first);
    EXPECT_EQ(reply.reuse, ChatReply::Reuse::kSnapshot) << regenerated;
    return reply.reused_tokens;
  };
  EXPECT_EQ(first_turn_again(0), 3 + 5);  // <s> <u> Hello <e> <a>, but for the last
  EXPECT_EQ(first_turn_again(1), 3 + 5);
  EXPECT_EQ(first_turn_again(3), 3 + 5);
}

// Follows each token by the next one; notes how many go through its layers at once.
class Successors final : public CausalLM {
 public:
  Successors() : CausalLM(testing::tiny_config("sliding"), at::kFloat, at::kCPU) {}

  mutable std::vector<std::int64_t> widths = {};

 protected:
  at::Tensor hidden_states(const at::Tensor& ids, ForwardContext& context) const override {
    widths.push_back(ids.size(1));
    for (std::int64_t layer = 0; layer < config().num_hidden_layers; ++layer) {
      const at::Tensor keys = at::ones({ids.size(0), 2, ids.size(1), 8});
      context.attend(layer, keys.repeat({1, 2, 1, 1}), {keys, keys});
    }
    return at::one_hot(ids.add(1).remainder(64), 64).to(at::kFloat);
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }
};

TEST(ChatSessionMarks, AreReachedInPiecesOfThePrefill) {
  const Successors model;
  GenerationConfig config = kConfig;
  config.prefill_chunk_size = 4;
  ChatSession chat = session(model, nullptr, kTemplate, config);
  const ChatReply reply = chat.send("the other thing and many more");
  EXPECT_EQ(reply.text, "");  // <a>, which the prompt ends with, is followed by <e>
  EXPECT_EQ(reply.new_tokens, 1);
  EXPECT_THAT(model.widths, Each(Le(4)));
  std::int64_t computed = 0;
  for (const std::int64_t width : model.widths) computed += width;
  EXPECT_EQ(computed, reply.prompt_tokens);
}

}  // namespace
}  // namespace kvcache
