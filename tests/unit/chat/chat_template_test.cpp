// The public interface: messages, options, checkpoints' folders.
#include "kvcache/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "kvcache/core/errors.h"
#include "rendered.h"
#include "tests/support/temp_folder.h"

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::TempFolder;
using ::testing::ThrowsMessage;

constexpr std::string_view kPlain =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

const std::vector<ChatMessage> kMessages = {{"user", "Hi", {}}, {"assistant", "Ho, ho ", {}}};

TEST(ChatTemplateTest, RendersMessages) {
  const auto chat_template = ChatTemplate::from_string(kPlain, {{"bos_token", "<s>"}});
  EXPECT_EQ(chat_template.render(kMessages), "<s><user>Hi<assistant>Ho, ho ");
  EXPECT_EQ(chat_template.render({kMessages.data(), 1}, {.add_generation_prompt = true}),
            "<s><user>Hi<assistant>");
  EXPECT_EQ(chat_template.render_json(R"([{"role": "user", "content": "Hi"}])"), "<s><user>Hi");
}

TEST(ChatTemplateTest, FieldsGoOverRoleAndContent) {
  const std::vector<ChatMessage> messages = {
      {"user", "", R"({"content": [{"type": "text", "text": "a"}], "name": "Ada"})"}};
  const auto chat_template = ChatTemplate::from_string(
      "{{ messages[0].content[0].text }}{{ messages[0].name }}{{ messages[0] }}");
  EXPECT_EQ(chat_template.render(messages),
            "aAda{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}], 'name': 'Ada'}");
}

TEST(ChatTemplateTest, NullFieldsAreAbsentAndReasoningHasItsNames) {
  const auto chat_template = ChatTemplate::from_string("{{ messages[0] }}");
  EXPECT_EQ(chat_template.render_json(R"([{"role": "a", "content": null, "reasoning": "r"}])"),
            "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}");
}

TEST(ChatTemplateTest, VariablesGoOverSpecialTokens) {
  const auto chat_template = ChatTemplate::from_string(kPlain, {{"bos_token", "<s>"}});
  EXPECT_EQ(chat_template.render({kMessages.data(), 1}, {.variables = R"({"bos_token": "B"})"}),
            "B<user>Hi");
  EXPECT_THAT([&] { chat_template.render(kMessages, {.variables = R"({"messages": 1})"}); },
              ThrowsMessage<ValueError>(HasSubstr("must not name messages")));
}

TEST(ChatTemplateTest, ContinuesTheFinalMessage) {
  const ChatTemplateOptions options = {.continue_final_message = true};
  EXPECT_EQ(ChatTemplate::from_string(kPlain).render(kMessages, options),
            "<user>Hi<assistant>Ho, ho ");
  const auto trimming =
      ChatTemplate::from_string("{% for m in messages %}{{ m.content | trim }}</s>{% endfor %}");
  EXPECT_EQ(trimming.render(kMessages, options), "Hi</s>Ho, ho");
  EXPECT_THAT(
      [&] { ChatTemplate::from_string("{{ messages[0].content }}").render(kMessages, options); },
      ThrowsMessage<ValueError>(HasSubstr("does not appear in the rendered chat")));
  EXPECT_THAT([&] { ChatTemplate::from_string("{{ messages }}").render(kMessages, options); },
              ThrowsMessage<ValueError>(HasSubstr("reads no \"content\"")));
  EXPECT_THAT(
      [&] {
        ChatTemplate::from_string(kPlain).render(
            kMessages, {.add_generation_prompt = true, .continue_final_message = true});
      },
      ThrowsMessage<ValueError>(HasSubstr("exclude each other")));
}

TEST(ChatTemplateTest, ContinuesReasoning) {
  const auto chat_template = ChatTemplate::from_string(
      "{% for m in messages %}{{ m.role }}<think>{{ m.reasoning_content }}</think>{{ m.content "
      "}}{% endfor %}");
  const std::vector<ChatMessage> messages = {{"assistant", "", R"({"thinking": "Let me"})"}};
  EXPECT_EQ(chat_template.render(
                messages, {.continue_final_message = true, .continue_field = "reasoning_content"}),
            "assistant<think>Let me");
}

TEST(ChatTemplateTest, RefusesBadInput) {
  const auto chat_template = ChatTemplate::from_string(kPlain);
  const auto refuses = [&](std::string_view json, const ChatTemplateOptions& options,
                           const std::string& what) {
    EXPECT_THAT([&] { chat_template.render_json(json, options); },
                ThrowsMessage<ValueError>(HasSubstr(what)));
  };
  refuses("[]", {}, "empty conversation");
  refuses("{", {}, "not valid JSON");
  refuses("{}", {}, "must be a JSON array");
  refuses("[1]", {}, "messages[0] is no object");
  refuses(R"([{"a": 12345678901234567890123}])", {}, "exceeds 64 bits");
  refuses(std::string(10000, '['), {}, "nests deeper than 100");
  refuses(R"([{"role": "a"}])", {.tools = "{}"}, "tools must be a JSON array");
  refuses(R"([{"role": "a"}])", {.variables = "[]"}, "variables must be a JSON object");
  refuses(R"([{"role": "a"}])", {.name = "rag"},
          "no chat template named 'rag'; there are: default");
  refuses(R"([{"role": "a"}])", {.limits = {.steps = 0}}, "must be positive");
  const ChatMessage broken{"user", "\xff", {}};
  EXPECT_THAT(
      [&] {
        chat_template.render({&broken, 1});
      },
      ThrowsMessage<ValueError>(HasSubstr("messages[0].content is no UTF-8 at byte 0")));
  EXPECT_THROW(ChatTemplate::from_string("\xff"), ValueError);
}

TEST(ChatTemplateTest, TimeIsGivenOrTheMachines) {
  const auto chat_template =
      ChatTemplate::from_string("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f %b%Z%%') }}");
  const auto now =
      std::chrono::local_days(std::chrono::year(2025) / 2 / 28) + std::chrono::seconds(61);
  EXPECT_EQ(chat_template.render(kMessages, {.now = now}), "2025-02-28 00:01:01.000000 Feb%");
  EXPECT_EQ(chat_template.render(kMessages).size(), 31u);
}

TEST(ChatTemplateFolderTest, ReadsTheConfiguredTemplateAndTokens) {
  const TempFolder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}", "bos_token": "<s>",
                   "eos_token": {"content": "</s>", "lstrip": false}, "image_token": "<i>", "pad_token": null,
                   "added_tokens_decoder": {}})");
  folder.write("special_tokens_map.json", R"({"bos_token": "no"})");
  EXPECT_EQ(ChatTemplate::from_folder(folder.path()).render(kMessages), "<s></s><i>");
}

TEST(ChatTemplateFolderTest, OldCheckpointsNameTokensInTheMap) {
  const TempFolder folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": "{{ bos_token }}", "bos_token": "<a>"})");
  folder.write("special_tokens_map.json", R"({"bos_token": {"content": "<b>"}})");
  EXPECT_EQ(ChatTemplate::from_folder(folder.path()).render(kMessages), "<b>");
}

TEST(ChatTemplateFolderTest, FilesGoOverTheConfig) {
  const TempFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>"})");
  folder.write("chat_template.jinja", "file {{ bos_token }}");
  folder.write("additional_chat_templates/rag.jinja", "rag");
  const auto chat_template = ChatTemplate::from_folder(folder.path());
  EXPECT_EQ(chat_template.render(kMessages), "file <s>");
  EXPECT_EQ(chat_template.render(kMessages, {.name = "rag"}), "rag");
}

TEST(ChatTemplateFolderTest, ToolsChooseTheirTemplate) {
  const TempFolder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"},
                                     {"name": "broken", "template": "\n{% if %}"}]})");
  const auto chat_template = ChatTemplate::from_folder(folder.path());
  EXPECT_EQ(chat_template.render(kMessages), "d");
  EXPECT_EQ(chat_template.render(kMessages, {.tools = "[]"}), "t");
  EXPECT_EQ(chat_template.render(kMessages, {.tools = "[]", .name = "default"}), "d");
  EXPECT_THAT([&] { chat_template.render(kMessages, {.name = "broken"}); },
              ThrowsMessage<ValueError>(HasSubstr("line 2")));
}

TEST(ChatTemplateFolderTest, NamesTheFolderWithoutATemplate) {
  const TempFolder folder;
  EXPECT_THAT(
      [&] { ChatTemplate::from_folder(folder.path()); },
      ThrowsMessage<ValueError>(HasSubstr(folder.path().string() + " has no chat template")));
  folder.write("tokenizer_config.json", "[]");
  EXPECT_THAT([&] { ChatTemplate::from_folder(folder.path()); },
              ThrowsMessage<ValueError>(HasSubstr("holds no JSON object")));
}

TEST(ChatTemplateTest, IsSharedByThreads) {
  const auto chat_template = ChatTemplate::from_string(kPlain);
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (auto& text : texts) {
    threads.emplace_back([&text, chat_template] {
      for (int i = 0; i < 100; ++i) text = chat_template.render(kMessages);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(texts, ::testing::Each("<user>Hi<assistant>Ho, ho "));
}

}  // namespace
}  // namespace kvcache
