// Files of --input-ids that nobody vouches for.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/cli/generate_program.h"

namespace kvcache {
namespace {

using testing::kLlama;
using testing::ProgramResult;

class InputIds : public testing::GenerateTest {
 protected:
  ProgramResult run_file(const std::string& text) const {
    return run(
        {"--model", kLlama, "--input-ids", write("ids.json", text), "--max-new-tokens", "1"});
  }
};

TEST_F(InputIds, NestNoDeeperThanRows) {
  for (const int levels : {1, 1'000'000}) {
    const std::string nested = std::string(levels, '[') + std::string(levels, ']');
    const std::string rows = "lists of rows of integers, but a row holds a list";
    expect_refused(run_file(R"({"input_ids": [[)" + nested + "]]}"), rows);
    expect_refused(run_file(R"({"input_ids": [[1]], "attention_mask": [[)" + nested + "]]}"), rows);
    expect_refused(run_file(R"({"input_ids": [[1]], "x": [[)" + nested + "]]}"), rows);
  }
  expect_refused(run_file(std::string(1'000'000, '[')), "rows of integers");
  expect_refused(run_file(R"({"input_ids": {"a": 1}})"), "holds an object within its own");
}

// Each object within the file's would be a walk through all before it.
TEST_F(InputIds, ManyObjectsAreRefusedAtTheFirst) {
  std::string text = R"({"input_ids": [[1]])";
  for (int i = 0; i < 300'000; ++i) text += ", \"" + std::to_string(i) + "\": {}";
  const auto start = std::chrono::steady_clock::now();
  expect_refused(run_file(text + "}"), "holds an object within its own");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace kvcache
