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
#include "tests/support/temp_folder.h"

namespace kvcache::test {

using Ids = std::vector<std::int64_t>;

inline std::filesystem::path text_goldens() {
  return std::filesystem::path(KVCACHE_TEST_DATA_DIR) / "parity/goldens/text";
}

class TemporaryFolder : public testing::TempFolder {
 public:
  // Copies a file of the goldens under its own name.
  void copy(const std::string& golden) const {
    const auto source = text_goldens() / golden;
    std::filesystem::copy_file(source, path() / source.filename());
  }
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
