// Runs a program and keeps what it says.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kvcache::testing {

struct ProgramResult {
  int code = 0;
  std::string out;
  std::string error;
};

inline std::string in_shell_quotes(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

inline std::string read_whole(const std::filesystem::path& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

// One temporary folder a test.
class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        std::filesystem::path(::testing::TempDir()) / (std::string("kvcache_cli_") + test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
    return (folder_ / name).string();
  }

  ProgramResult run(const std::vector<std::string>& arguments) const {
    return run_program(KVCACHE_GENERATE_PROGRAM, arguments);
  }

  ProgramResult run_program(const std::string& program,
                            const std::vector<std::string>& arguments) const {
    const std::filesystem::path out = folder_ / "stdout";
    ProgramResult result = run_onto(out, program, arguments);
    result.out = read_whole(out);
    return result;
  }

  // With `out` as standard output, which is not read.
  ProgramResult run_onto(const std::filesystem::path& out, const std::string& program,
                         const std::vector<std::string>& arguments) const {
    const std::filesystem::path error = folder_ / "stderr";
    std::string command = in_shell_quotes(program);
    for (const std::string& argument : arguments) command += " " + in_shell_quotes(argument);
    command += " > " + in_shell_quotes(out.string()) + " 2> " + in_shell_quotes(error.string());
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, {}, read_whole(error)};
  }

  std::filesystem::path folder_;
};

}  // namespace kvcache::testing
