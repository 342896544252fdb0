// A program at a terminal of its own, and a person who types there.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::testing {

class Terminal {
 public:
  // Starts a program; arguments after its path.
  explicit Terminal(std::vector<std::string> command) {
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    child_ = forkpty(&screen_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    if (screen_ >= 0) close(screen_);
  }

  void type(const std::string& keys) {
    EXPECT_EQ(write(screen_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  // What appears from now on up to and with `text`; all there was, and a failure, where it does not
  // within five minutes or the program ends before.
  std::string wait_for(const std::string& text) {
    return wait([&] { return seen_.find(text); }, text.size(), "\"" + text + "\"");
  }

  // Whether `text` appears within a second: all up to it counts as seen then.
  bool shows(const std::string& text) {
    const Time end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (seen_.find(text) == std::string::npos) {
      if (!read_some(end)) return false;
    }
    seen_.erase(0, seen_.find(text) + text.size());
    return true;
  }

  // At least so many bytes of what appears from now on.
  std::string wait_for_bytes(std::size_t count) {
    return wait([&] { return seen_.size() >= count ? 0 : std::string::npos; }, count, "more");
  }

  // The program's exit code; -1, and a failure, where it does not end within five minutes.
  int wait_for_end() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (read_some(end)) seen_.clear();
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "the program did not end";
        return -1;
      }
      usleep(10'000);
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kPatience{300};

  template <typename Find>
  std::string wait(const Find& find, std::size_t length, const std::string& what) {
    const Time end = std::chrono::steady_clock::now() + kPatience;
    std::size_t at = find();
    while (at == std::string::npos && read_some(end)) at = find();
    if (at == std::string::npos) {
      ADD_FAILURE() << "there never was " << what << ", only:\n" << seen_;
      return std::exchange(seen_, {});
    }
    std::string shown = seen_.substr(0, at + length);
    seen_.erase(0, at + length);
    return shown;
  }

  // False at the end of the output, or of patience.
  bool read_some(Time end) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd ready{.fd = screen_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) return false;
    char buffer[4096];
    const ssize_t count = read(screen_, buffer, sizeof buffer);
    if (count <= 0) return false;  // EIO: the program has ended
    seen_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

  pid_t child_ = -1;
  int screen_ = -1;
  std::string seen_;  // and not waited for yet
};

}  // namespace kvcache::testing
