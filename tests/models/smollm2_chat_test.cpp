// A conversation with SmolLM2-135M-Instruct: every turn is a fresh run over all of it, of which
// only what is new is computed.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "kvcache/chat/chat_session.h"
#include "kvcache/models/registry.h"
#include "tests/support/model_folder.h"

namespace kvcache {
namespace {

constexpr const char* kTurns[] = {"My name is Ada. What is yours?",
                                  "What is my name?",
                                  "Name three colours.",
                                  "Which of them is the sky's?",
                                  "Say it in French: 你好, <|im_end|>?",
                                  "Thank you!"};

TEST(SmolLM2Chat, SixTurnsAreFreshRunsOfWhichOnlyTheNewIsComputed) {
  const std::filesystem::path folder = testing::model_folder("SmolLM2-135M-Instruct");
  const auto model = load_model(folder, {.dtype = at::kFloat});
  GenerationConfig config = GenerationConfig::from_pretrained(folder);
  config.do_sample = false;
  config.max_new_tokens = 24;
  const auto session = [&] {
    return ChatSession(*model, Tokenizer::from_folder(folder), ChatTemplate::from_folder(folder),
                       {.generation = config});
  };
  ChatSession chat = session();
  for (const char* text : kTurns) {
    ChatSession fresh = session();
    for (const ChatMessage& message : chat.messages()) fresh.add(message);
    const std::int64_t held = chat.cache().get_seq_length();
    const ChatReply reply = chat.send(text);
    const ChatReply expected = fresh.send(text);
    EXPECT_EQ(reply.text, expected.text) << text;
    EXPECT_EQ(reply.prompt_tokens, expected.prompt_tokens);
    EXPECT_EQ(expected.reused_tokens, 0);
    // A reply that was cut off is held but for its last token; its text may be spelled by others.
    EXPECT_GE(reply.reused_tokens, held - 2) << text;
    EXPECT_EQ(reply.timings.prefill_tokens, reply.prompt_tokens - reply.reused_tokens);
  }
}

}  // namespace
}  // namespace kvcache
