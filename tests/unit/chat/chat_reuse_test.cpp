// How a session comes to hold what a prompt begins with, and how much of it: by kind of cache.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "kvcache/chat/chat_session.h"
#include "tests/support/checkpoints.h"
#include "tests/unit/chat/sessions.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::fresh_reply;
using testing::kReplyConfig;
using testing::kTemplate;
using testing::session;
using testing::with;
using Reuse = ChatReply::Reuse;

ChatSession with_marks(const CausalLM& model, std::int64_t marks) {
  return session(model, kTemplate, nullptr, {.generation = kReplyConfig, .marks = marks});
}

// All three have moved on by the end of a reply: a window of four tokens, states of recurrences,
// and those of convolutions beside full attention.
class ForgetfulChat : public ::testing::TestWithParam<const char*> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam()); }
};

TEST_P(ForgetfulChat, ARegeneratedReplyBeginsAtTheMark) {
  ChatSession chat = session(model());
  EXPECT_EQ(chat.send("Hello").reuse, Reuse::kNothing);
  for (const char* text : {"and then?", "or else?"}) {
    const ChatReply first = chat.send(text);
    const ChatReply again = chat.regenerate();
    EXPECT_EQ(again.text, first.text);
    EXPECT_EQ(again.reuse, Reuse::kSnapshot);
    EXPECT_EQ(again.prompt_tokens, first.prompt_tokens);
    EXPECT_EQ(again.reused_tokens, again.prompt_tokens - 1);
    EXPECT_EQ(again.timings.prefill_tokens, 1);
  }
}

TEST_P(ForgetfulChat, MarksReachBackAsManyTurnsAsThereAre) {
  for (const std::int64_t marks : {1, 2, 3}) {
    ChatSession chat = with_marks(model(), marks);
    const std::int64_t first = chat.send("Hello").prompt_tokens;
    const std::int64_t second = chat.send("and then?").prompt_tokens;
    chat.send("more");
    chat.edit(4, "less");  // of the third turn, whose mark holds "more": the second one's is left
    ChatReply reply = chat.reply();
    EXPECT_EQ(reply.text,
              fresh_reply(model(), {chat.messages().begin(), chat.messages().begin() + 5}));
    EXPECT_EQ(reply.reuse, marks >= 2 ? Reuse::kSnapshot : Reuse::kNothing) << marks;
    EXPECT_EQ(reply.reused_tokens, marks >= 2 ? second - 1 : 0) << marks;

    // Of the marks that are left, only the first turn's is of this text.
    chat.edit(2, "or else?");
    reply = chat.reply();
    EXPECT_EQ(reply.text,
              fresh_reply(model(), {chat.messages().begin(), chat.messages().begin() + 3}));
    EXPECT_EQ(reply.reuse, marks >= 3 ? Reuse::kSnapshot : Reuse::kNothing) << marks;
    EXPECT_EQ(reply.reused_tokens, marks >= 3 ? first - 1 : 0) << marks;
  }
}

TEST_P(ForgetfulChat, AnEditedBeginningBeginsAnew) {
  for (const std::int64_t marks : {2, 8}) {  // no mark is from before the first message
    ChatSession chat = with_marks(model(), marks);
    for (const char* text : {"Hello", "and then?", "more"}) chat.send(text);
    chat.edit(0, "Bye");
    const ChatReply reply = chat.reply();
    EXPECT_EQ(reply.text, fresh_reply(model(), {chat.messages()[0]}));
    EXPECT_EQ(reply.reuse, Reuse::kNothing);
    EXPECT_EQ(reply.reused_tokens, 0);
    EXPECT_EQ(reply.timings.prefill_tokens, reply.prompt_tokens);
    const std::string expected = fresh_reply(model(), with(chat.messages(), "and?"));
    EXPECT_EQ(chat.send("and?").text, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForgetfulChat, ::testing::Values("mistral", "mamba2", "lfm2"),
                         [](const auto& of) { return std::string(of.param); });

TEST(ChatReuse, AFullCacheIsCroppedToWhatIsCommon) {
  const CausalLM& model = checkpoint("llama");
  ChatSession chat = session(model);
  const ChatReply first = chat.send("Hello");
  EXPECT_EQ(first.reuse, Reuse::kNothing);
  const ChatReply again = chat.regenerate();
  EXPECT_EQ(again.reuse, Reuse::kCropped);
  EXPECT_EQ(again.reused_tokens, again.prompt_tokens - 1);
  EXPECT_EQ(again.text, first.text);
  chat.send("and then?");
  chat.edit(0, "Hi");
  const ChatReply edited = chat.reply();
  EXPECT_EQ(edited.reuse, Reuse::kCropped);
  EXPECT_EQ(edited.reused_tokens, 3);  // <s> <u> H
  EXPECT_EQ(edited.text, fresh_reply(model, {chat.messages()[0]}));
}

// A reply that is spelled as it was made goes on where it ended.
TEST(ChatReuse, AllThatIsHeldIsKept) {
  for (const char* name : {"llama", "mistral", "mamba2", "lfm2"}) {
    GenerationConfig config = kReplyConfig;
    config.suppress_tokens = {{59, 60, 61, 62}};  // what a text would be spelled otherwise with
    ChatSession chat = session(checkpoint(name), kTemplate, nullptr, {.generation = config});
    const ChatReply first = chat.send("Hello");
    const ChatReply next = chat.send("more");
    EXPECT_EQ(next.reuse, Reuse::kHeld) << name;
    EXPECT_EQ(next.reused_tokens, first.prompt_tokens + first.new_tokens - 1) << name;
  }
}

}  // namespace
}  // namespace kvcache
