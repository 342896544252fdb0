// UTF-8 and the few character classes that tokenizers need beyond patterns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache::detail {

using CodePoint = char32_t;

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Turns bytes that come in any portions into text: every maximal part that can begin no character
// becomes one U+FFFD (Unicode 15, section 3.9, "substitution of maximal subparts").
class Utf8Stream {
 public:
  // Appends to `out` the characters that `bytes` complete.
  void write(std::string_view bytes, std::string& out);
  // Ends the text: an unfinished character becomes U+FFFD.
  void finish(std::string& out);
  // True if a character has begun and not ended.
  bool pending() const { return !pending_.empty(); }

 private:
  void write_byte(unsigned char byte, std::string& out);

  std::string pending_;
};

// Offset of the first byte that belongs to no well-formed character, or npos.
std::size_t find_invalid_utf8(std::string_view text);

// Reads the character at `position` of well-formed UTF-8 and moves behind it.
CodePoint next_code_point(std::string_view text, std::size_t& position);
// Reads the character that ends at `position` and moves before it.
CodePoint previous_code_point(std::string_view text, std::size_t& position);
void append_code_point(std::string& text, CodePoint code);

bool is_white_space(CodePoint code);  // Unicode's White_Space
bool is_word(CodePoint code);         // \w: letters, marks, decimal digits, connectors, joiners
bool is_numeric(CodePoint code);      // general category N
bool is_mark(CodePoint code);         // general category M
bool is_punctuation(CodePoint code);  // general category P, and ASCII symbols

// Unicode's default lower-case mapping of one character, without context.
void append_lower_case(std::string& text, CodePoint code);

}  // namespace kvcache::detail
