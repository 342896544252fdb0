// A SentencePiece model file (spiece.model, tokenizer.model): its pieces and the settings that
// libsentencepiece does not give out, read and checked before that library sees the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail {

// Numbers are those of sentencepiece_model.proto
// (https://github.com/google/sentencepiece/blob/v0.1.97/src/sentencepiece_model.proto).
enum class PieceType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct SentencePieceFile {
  static constexpr std::uint64_t kUnigram = 1;
  static constexpr std::uint64_t kBpe = 2;

  std::vector<SentencePiece> pieces;  // by id
  std::uint64_t model_type = kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string charsmap;  // how characters are normalized, precompiled; may be empty
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Throws ValueError if the bytes are damaged, or would lead libsentencepiece out of its bounds.
SentencePieceFile parse_sentencepiece_file(std::string_view bytes);

// Throws ValueError unless lookups in a precompiled charsmap stay within it.
void check_charsmap(std::string_view charsmap);

}  // namespace kvcache::detail
