// The chat program: answers line by line, goes on with what it holds, and keeps a session.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/cli/terminal.h"
#include "tests/support/model_folder.h"

namespace kvcache::testing {
namespace {

class Chat : public ProgramTest {
 protected:
  // What it says to these lines.
  ProgramResult chat(const std::string& lines, const std::vector<std::string>& arguments) const {
    std::string command = in_shell_quotes(KVCACHE_CHAT_PROGRAM);
    for (const std::string& argument : arguments) command += " " + in_shell_quotes(argument);
    return run_program("sh", {"-c", "printf %s " + in_shell_quotes(lines) + " | " + command});
  }

  // "[a of b tokens reused, c new]".
  struct Turn {
    int reused = -1;
    int prompt = -1;
    int made = -1;
  };

  // Of its n-th answer.
  static Turn turn(const std::string& out, int n) {
    std::size_t at = 0;
    for (int i = 0; i <= n; ++i) {
      at = out.find("\n[", at);
      if (at == std::string::npos) return {};
      at += 2;
    }
    std::istringstream numbers(out.substr(at));
    std::string word;
    Turn turn;
    numbers >> turn.reused >> word >> turn.prompt >> word >> word >> turn.made;
    return turn;
  }

  // What a session's folder keeps of the user's messages.
  static std::vector<std::string> said(const std::filesystem::path& session) {
    std::vector<std::string> said;
    for (const auto& message : nlohmann::json::parse(read_whole(session / "messages.json"))) {
      if (message.at("role") == "user") said.push_back(message.at("content"));
    }
    return said;
  }

  std::string model_ = model_folder("SmolLM2-135M-Instruct").string();
};

TEST_F(Chat, AnswersAndReusesWhatItHolds) {
  const std::string session = (folder_ / "session").string();
  const ProgramResult first = chat("Say yes.\n\nSay no.\n", {model_, session});
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_EQ(turn(first.out, 0).reused, 0) << first.out;
  const Turn next = turn(first.out, 1);
  EXPECT_GT(next.reused, turn(first.out, 0).prompt - 1) << first.out;
  EXPECT_LT(next.reused, next.prompt);

  const ProgramResult second = chat("Say yes again.\n", {model_, session});
  EXPECT_EQ(second.code, 0) << second.error;
  EXPECT_GE(turn(second.out, 0).reused, next.prompt - 1) << second.out;
}

TEST_F(Chat, SaysWhatIsWrong) {
  EXPECT_EQ(chat("", {}).code, 2);
  const ProgramResult none = chat("", {"/nonexistent"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.error.rfind("error: ", 0), 0U) << none.error;
}

TEST_F(Chat, ATurnThatFailsIsLeftOut) {
  const auto session = folder_ / "new";
  std::filesystem::create_directory(session);  // empty: a conversation yet to begin
  const ProgramResult result = chat("\xff\xfe\nSay yes.\n", {model_, session.string()});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_NE(result.error.find("error: "), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("UTF-8"), std::string::npos) << result.error;
  EXPECT_GT(turn(result.out, 0).made, 0) << result.out;
  EXPECT_EQ(said(session), std::vector<std::string>{"Say yes."});
}

// Ctrl-C as soon as a reply has begun: it ends there, and the next line is answered.
TEST_F(Chat, CtrlCEndsAReplyAlone) {
  const std::string script =
      "(printf 'Tell me a long story about a dragon and a knight.\\n'; n=0; "
      "until [ $(wc -c < stdout) -gt 40 ] || [ $((n += 1)) -gt 600 ]; do sleep 0.1; done; "
      "kill -INT $(cat pid); printf 'Say yes.\\n') | "
      "sh -c 'echo $$ > pid; exec \"$0\" \"$1\"' " +
      in_shell_quotes(KVCACHE_CHAT_PROGRAM) + " " + in_shell_quotes(model_);
  const ProgramResult result =
      run_program("sh", {"-c", "cd " + in_shell_quotes(folder_.string()) + "; " + script});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_GT(turn(result.out, 0).made, 0) << result.out;
  EXPECT_LT(turn(result.out, 0).made, 128) << result.out;  // of the 256 that a reply may have
  EXPECT_GT(turn(result.out, 1).reused, 0) << result.out;
}

TEST_F(Chat, ATerminalsKeysDoWhatTheyDoElsewhere) {
  const auto session = folder_ / "session";
  Terminal terminal({KVCACHE_CHAT_PROGRAM, model_, session.string()});
  terminal.wait_for("> ");
  int tries = 0;  // a Ctrl-C after the prompt and before the program reads drops the line alone
  do {
    terminal.type("not this\x03");
  } while (!terminal.shows("\n> ") && ++tries < 100);
  EXPECT_LT(tries, 100);
  terminal.type("nor this\x15");                      // Ctrl-U
  terminal.type("Tell me a long stoyr\x7f\x7fry\n");  // Backspace
  terminal.wait_for("ry\r\n");
  terminal.wait_for_bytes(40);
  terminal.type("\x03");
  const Turn first = turn(terminal.wait_for("new]"), 0);
  EXPECT_GT(first.made, 0);
  EXPECT_LT(first.made, 128);
  terminal.wait_for("\n> ");
  terminal.type("Say yes.\n");
  terminal.wait_for("yes.\r\n");
  terminal.wait_for("new]");
  terminal.wait_for("\n> ");
  terminal.type("\x04");  // Ctrl-D
  EXPECT_EQ(terminal.wait_for_end(), 0);
  EXPECT_EQ(said(session), (std::vector<std::string>{"Tell me a long story", "Say yes."}));
}

}  // namespace
}  // namespace kvcache::testing
