// POSIX files with errors in words: opening regular files to read, and replacing files atomically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache::detail {

// The text in double quotes for a message: control characters and broken UTF-8 as \xNN, cut after
// 120 bytes (names in hostile files may be megabytes long).
std::string in_quotes(std::string_view text);

// Owns a file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct OpenedFile {
  FileDescriptor fd;
  std::int64_t size;  // bytes
};

// Whether anything lies at `path`, symbolic links followed. Throws ValueError if the system cannot
// tell (a loop of links, a folder without permission).
bool is_present(const std::filesystem::path& path);

// Refuses what is no folder, or none that can be looked at, where a checkpoint's is asked for.
// Throws ValueError.
void check_checkpoint_folder(const std::filesystem::path& folder);

// Opens a regular file to read. Never waits (on a pipe without a writer). Throws ValueError.
OpenedFile open_regular_file(const std::filesystem::path& path);

// A file that is written under a temporary name beside `path` and takes its place in commit().
// Destroyed before that, it leaves no trace.
class AtomicFile {
 public:
  // Throws ValueError if `path` is there and no regular file, or no file can be made in its
  // folder.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Both throw RuntimeError if the system refuses (a full disk).
  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor fd_;
  bool committed_ = false;
};

}  // namespace kvcache::detail
