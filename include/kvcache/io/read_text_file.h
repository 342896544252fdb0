// Reads a small text file (a config, a tokenizer, an index) whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kvcache {

// Largest text file read by default, in bytes: several times the largest tokenizer.json in use.
inline constexpr std::int64_t kMaxTextFileBytes = 256 * 1024 * 1024;

// The file's bytes as they are; whether they are UTF-8 is the caller's concern. An empty file gives
// "". Throws ValueError, with the path and the reason, if it cannot be read, is not a regular file,
// or is larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path,
                           std::int64_t max_bytes = kMaxTextFileBytes);

}  // namespace kvcache
