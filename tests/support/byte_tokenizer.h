// A byte-level tokenizer without merges: a character of several bytes is as many tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/text/tokenizer.h"

namespace kvcache::testing {

// The byte-level alphabet's character of a byte.
inline std::string byte_character(int byte) {
  const bool printable =
      (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  int code = byte;
  if (!printable) {
    code = 0x100 + (byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7F + 33 : 33 + 34);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Every byte is a token and its id; 256 is a special token, <end>.
inline Tokenizer byte_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_character(byte)] = byte;
  const nlohmann::json level = {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", false}};
  const nlohmann::json root = {
      {"pre_tokenizer", level},
      {"decoder", level},
      {"added_tokens", {{{"id", 256}, {"content", "<end>"}, {"special", true}}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return Tokenizer::from_json(root.dump());
}

}  // namespace kvcache::testing
