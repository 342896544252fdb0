// The chat program: answers line by line, goes on with what it holds, and keeps a session.
#include "tests/cli/program.h"
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

  // "[a of b tokens reused" of its n-th answer: {a, b}.
  static std::pair<int, int> reused(const std::string& out, int n) {
    std::size_t at = 0;
    for (int i = 0; i <= n; ++i) at = out.find("\n[", at) + 2;
    std::istringstream numbers(out.substr(at));
    std::string of;
    std::pair<int, int> result;
    numbers >> result.first >> of >> result.second;
    return result;
  }

  std::string model_ = model_folder("SmolLM2-135M-Instruct").string();
};

TEST_F(Chat, AnswersAndReusesWhatItHolds) {
  const std::string session = (folder_ / "session").string();
  const ProgramResult first = chat("Say yes.\n\nSay no.\n", {model_, session});
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_EQ(reused(first.out, 0).first, 0) << first.out;
  const auto [held, prompt] = reused(first.out, 1);
  EXPECT_GT(held, reused(first.out, 0).second - 1) << first.out;
  EXPECT_LT(held, prompt);

  const ProgramResult second = chat("Say yes again.\n", {model_, session});
  EXPECT_EQ(second.code, 0) << second.error;
  EXPECT_GE(reused(second.out, 0).first, prompt - 1) << second.out;
}

TEST_F(Chat, SaysWhatIsWrong) {
  EXPECT_EQ(chat("", {}).code, 2);
  const ProgramResult none = chat("", {"/nonexistent"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.error.rfind("error: ", 0), 0U) << none.error;
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
  EXPECT_GT(reused(result.out, 1).first, 0) << result.out;
}

}  // namespace
}  // namespace kvcache::testing
