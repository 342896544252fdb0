// What the text tests share: the oracle's goldens (tests/parity/goldens/text) and small helpers.
#pragma once

#include <cstdint>
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

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream file(text_goldens() / name);
  return nlohmann::json::parse(file);
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
