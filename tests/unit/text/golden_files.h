// What the text tests share: the oracle's goldens (tests/parity/goldens/text) and small helpers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kvcache/text/incremental_decoder.h"
#include "kvcache/text/tokenizer.h"

namespace kvcache::test {

using Ids = std::vector<std::int64_t>;

inline std::filesystem::path text_goldens() {
  return std::filesystem::path(KVCACHE_TEST_DATA_DIR) / "parity/goldens/text";
}

// An empty folder, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvcache_text_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  // Copies a file of the goldens under its own name.
  void copy(const std::string& golden) const {
    const auto source = text_goldens() / golden;
    std::filesystem::copy_file(source, path_ / source.filename());
  }

 private:
  std::filesystem::path path_;
};

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream file(text_goldens() / name);
  return nlohmann::json::parse(file);
}

// The tokenizer of that name: what its tokenizer.json, or its SentencePiece model, describes.
inline Tokenizer golden_tokenizer(const std::string& name) {
  const auto file = text_goldens() / name / "tokenizer.json";
  return std::filesystem::exists(file) ? Tokenizer::from_file(file)
                                       : Tokenizer::from_folder(text_goldens() / name);
}

// Decodes id by id: all pieces joined.
inline std::string decode_stepwise(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                   DecodeOptions options = {}) {
  IncrementalDecoder decoder(tokenizer, options);
  std::string text;
  for (const auto id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

}  // namespace kvcache::test
