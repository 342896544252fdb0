// A whole file mapped read-only into memory: weights are read from the page cache, not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace kvcache {

// Move-only owner of one mapping. Writing to its bytes is a segmentation fault, and shortening the
// file while it is mapped makes a later read a bus error: replace such files (rename), never edit
// them in place.
class MappedFile {
 public:
  // Throws ValueError, with the path and the system's reason, if the file cannot be opened or
  // mapped, is empty, or is not a regular file (a directory, a pipe, a device).
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The file's bytes; empty after the mapping was moved away.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

  // Lets the resident pages that hold bytes [offset, offset + length) go. They come back from the
  // file when they are read again, so this changes memory use only. Pages that the process has
  // locked stay. Throws ValueError if the range is not inside the file.
  void release_pages(std::int64_t offset, std::int64_t length) const;

 private:
  void unmap() noexcept;

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace kvcache
