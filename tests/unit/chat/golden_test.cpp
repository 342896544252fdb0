// Every conversation through every family's template, and random small templates, as the oracle
// renders them (tests/parity/make_chat_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvcache/chat/chat_template.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"

namespace kvcache {
namespace {

// Keys keep their order, as templates print them.
using Json = nlohmann::ordered_json;

const std::filesystem::path kParity = std::filesystem::path(KVCACHE_TEST_DATA_DIR) / "parity";
const std::filesystem::path kGoldens = kParity / "goldens" / "chat";

Json read_json(const std::filesystem::path& path) { return Json::parse(read_text_file(path)); }

// The arguments of apply_chat_template as options. The time is the goldens': 2024-07-26 09:05:03.
ChatTemplateOptions options_of(const Json& arguments) {
  ChatTemplateOptions options;
  options.now = std::chrono::local_days(std::chrono::year(2024) / 7 / 26) + std::chrono::hours(9) +
                std::chrono::minutes(5) + std::chrono::seconds(3);
  Json variables = Json::object();
  for (const auto& [name, value] : arguments.items()) {
    if (name == "add_generation_prompt") {
      options.add_generation_prompt = value.get<bool>();
    } else if (name == "continue_final_message") {
      options.continue_final_message = value.get<bool>();
    } else if (name == "tools") {
      options.tools = value.dump();
    } else if (name == "documents") {
      options.documents = value.dump();
    } else {
      variables[name] = value;
    }
  }
  options.variables = variables.dump();
  return options;
}

struct Outcome {
  bool rendered = false;
  std::string text;  // or the error's message
};

Outcome render(const ChatTemplate& chat_template, const Json& messages,
               const ChatTemplateOptions& options) {
  try {
    return {true, chat_template.render_json(messages.dump(), options)};
  } catch (const ValueError& error) {
    return {false, error.what()};
  }
}

// A message that the template raises itself must be the oracle's.
void expect_outcome(const Json& expected, const Outcome& outcome) {
  if (expected.contains("text")) {
    ASSERT_TRUE(outcome.rendered) << outcome.text;
    EXPECT_EQ(outcome.text, expected["text"].get<std::string>());
    return;
  }
  ASSERT_FALSE(outcome.rendered) << "rendered: " << outcome.text;
  if (expected["error"].is_string()) {
    EXPECT_TRUE(outcome.text.ends_with(": " + expected["error"].get<std::string>()))
        << outcome.text;
  }
}

class FamilyTest : public testing::TestWithParam<std::string> {};

TEST_P(FamilyTest, RendersConversationsAsTheOracle) {
  const ChatTemplate chat_template = ChatTemplate::from_string(
      read_text_file(kParity / "chat_templates" / (GetParam() + ".jinja")),
      {{"bos_token", "<s>"},
       {"eos_token", "</s>"},
       {"unk_token", "<unk>"},
       {"pad_token", "<pad>"}});
  const Json conversations = read_json(kGoldens / "conversations.json")["cases"];
  const Json expected = read_json(kGoldens / (GetParam() + ".json"))["cases"];
  ASSERT_GE(conversations.size(), 60u);
  ASSERT_EQ(conversations.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Json& conversation = conversations[i];
    ASSERT_EQ(conversation["name"], expected[i]["name"]);
    SCOPED_TRACE(conversation["name"].get<std::string>());
    expect_outcome(expected[i], render(chat_template, conversation["messages"],
                                       options_of(conversation["arguments"])));
  }
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kParity / "chat_templates")) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, testing::ValuesIn(families()),
                         [](const auto& instance) { return instance.param; });

TEST(ChatGoldenTest, HasTheFamilies) { EXPECT_GE(families().size(), 16u); }

TEST(ChatGoldenTest, RandomTemplatesRenderAsJinja) {
  const Json golden = read_json(kGoldens / "expressions.json");
  ASSERT_EQ(golden["cases"].size(), 2500u);
  ChatTemplateOptions options;
  options.variables = golden["values"].dump();
  for (const Json& expected : golden["cases"]) {
    const auto source = expected["template"].get<std::string>();
    SCOPED_TRACE(source);
    Outcome outcome;
    try {
      const ChatTemplate chat_template = ChatTemplate::from_string(source);
      outcome = render(chat_template, Json::array({Json::object({{"role", "user"}})}), options);
    } catch (const ValueError& error) {
      outcome.text = error.what();
    }
    expect_outcome(expected, outcome);
  }
}

}  // namespace
}  // namespace kvcache
