// A tokenizer for the tiny checkpoints' vocabulary of 64: a token a character, some special ones.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/text/tokenizer.h"

namespace kvcache::testing {

// Ids 0 to 58: kCharacters; 59: "th", which is merged; then <s>, <u>, <a> and <e>, special ones.
inline constexpr std::string_view kCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.!?<>/ ";

// Its tokenizer.json.
inline std::string char_tokenizer_json() {
  nlohmann::json vocab = nlohmann::json::object();
  std::int64_t next = 0;
  for (const char c : kCharacters) vocab[c == ' ' ? "\u0120" : std::string(1, c)] = next++;
  vocab["th"] = next++;
  nlohmann::json added = nlohmann::json::array();
  for (const char* token : {"<s>", "<u>", "<a>", "<e>"}) {
    added.push_back({{"id", next++}, {"content", token}, {"special", true}});
  }
  const nlohmann::json level = {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", false}};
  const nlohmann::json root = {{"pre_tokenizer", level},
                               {"decoder", level},
                               {"added_tokens", added},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h"}}}}};
  return root.dump();
}

inline Tokenizer char_tokenizer() { return Tokenizer::from_json(char_tokenizer_json()); }

}  // namespace kvcache::testing
