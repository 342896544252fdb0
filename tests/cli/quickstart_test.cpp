// The README's program: the README shows it as it is, and it answers.
#include "tests/cli/program.h"
#include "tests/support/model_folder.h"

namespace kvcache::testing {
namespace {

const std::filesystem::path kRoot = std::filesystem::path(KVCACHE_TEST_DATA_DIR).parent_path();

TEST(Readme, ShowsTheQuickstartProgram) {
  const std::string program = read_whole(kRoot / "examples/quickstart.cpp");
  const std::string shown = program.substr(program.find("#include"));
  ASSERT_GT(shown.size(), 500U);
  EXPECT_NE(read_whole(kRoot / "README.md").find("```cpp\n" + shown + "```"), std::string::npos)
      << "copy examples/quickstart.cpp, from its first #include on, into README.md";
}

using Quickstart = ProgramTest;

TEST_F(Quickstart, AnswersAPrompt) {
  const std::filesystem::path model = model_folder("SmolLM2-135M-Instruct");
  ASSERT_TRUE(std::filesystem::exists(model / "config.json"))
      << "no model in " << model << "; run: python3 scripts/fetch_model.py";
  const ProgramResult result =
      run_program(KVCACHE_QUICKSTART_PROGRAM, {model.string(), "The capital of France is"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.out.rfind("The capital of France is Paris", 0), 0U) << result.out;
  // 30 layers x 3 heads x 64 x 2 bytes x keys and values = 23,040 bytes a token.
  std::istringstream last(result.out.substr(result.out.rfind('\n', result.out.size() - 2) + 1));
  std::int64_t tokens = 0, bytes = 0;
  std::string word;
  last >> tokens >> word >> word >> bytes;
  EXPECT_GT(tokens, 5);
  EXPECT_EQ(bytes, tokens * 23040);
}

TEST_F(Quickstart, SaysHowItIsCalled) {
  const ProgramResult result = run_program(KVCACHE_QUICKSTART_PROGRAM, {});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.error.find("usage"), std::string::npos);
}

}  // namespace
}  // namespace kvcache::testing
