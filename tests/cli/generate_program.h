// Runs of the generate program on tiny checkpoints.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace kvcache::testing {

using Arguments = std::vector<std::string>;

inline constexpr const char* kLlama = KVCACHE_TEST_DATA_DIR "/parity/checkpoints/llama";

class GenerateTest : public ProgramTest {
 protected:
  // The tiny llama with prompt [5, 6, 7] and what is given.
  ProgramResult run_ids(const Arguments& more) const {
    Arguments all{"--model", kLlama, "--input-ids",
                  write("ids.json", R"({"input_ids": [[5, 6, 7]]})")};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }

  nlohmann::json run_json(Arguments more) const {
    more.push_back("--json");
    const ProgramResult result = run_ids(more);
    EXPECT_EQ(result.code, 0) << result.error;
    return nlohmann::json::parse(result.out);
  }

  // One sentence on standard error that has `part`, and nothing on standard output.
  static void expect_refused(const ProgramResult& result, const std::string& part) {
    EXPECT_EQ(result.code, 2) << result.error;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.error, ::testing::StartsWith("error: "));
    EXPECT_THAT(result.error, ::testing::HasSubstr(part));
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  }
};

}  // namespace kvcache::testing
