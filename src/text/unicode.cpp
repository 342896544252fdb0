#include "text/unicode.h"

#include <utf8proc.h>

#include <array>

namespace kvcache::detail {

namespace {

// Number of bytes that a lead byte announces; 0 where it can lead no character.
int sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Whether `byte` may follow `count` bytes that begin with `lead` (no overlong forms, surrogates, or
// values above U+10FFFF).
bool may_follow(unsigned char lead, std::size_t count, unsigned char byte) {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (count == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

utf8proc_category_t category(CodePoint code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

// Letter-like symbols (enclosed alphanumerics) that are Alphabetic though their category is So.
bool is_alphabetic_symbol(CodePoint code) {
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

}  // namespace

void Utf8Stream::write_byte(unsigned char byte, std::string& out) {
  if (!pending_.empty()) {
    const auto lead = static_cast<unsigned char>(pending_.front());
    if (may_follow(lead, pending_.size(), byte)) {
      pending_.push_back(static_cast<char>(byte));
      if (static_cast<int>(pending_.size()) == sequence_length(lead)) {
        out += pending_;
        pending_.clear();
      }
      return;
    }
    out += kReplacementCharacter;
    pending_.clear();
  }
  const int length = sequence_length(byte);
  if (length == 1) {
    out.push_back(static_cast<char>(byte));
  } else if (length == 0) {
    out += kReplacementCharacter;
  } else {
    pending_.push_back(static_cast<char>(byte));
  }
}

void Utf8Stream::write(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) write_byte(static_cast<unsigned char>(byte), out);
}

void Utf8Stream::finish(std::string& out) {
  if (!pending_.empty()) out += kReplacementCharacter;
  pending_.clear();
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    const auto lead = static_cast<unsigned char>(text[position]);
    const int length = sequence_length(lead);
    if (length == 0) return position;
    for (std::size_t count = 1; count < static_cast<std::size_t>(length); ++count) {
      if (position + count >= text.size()) return position;
      if (!may_follow(lead, count, static_cast<unsigned char>(text[position + count]))) {
        return position;
      }
    }
    position += static_cast<std::size_t>(length);
  }
  return std::string_view::npos;
}

CodePoint next_code_point(std::string_view text, std::size_t& position) {
  const auto lead = static_cast<unsigned char>(text[position++]);
  const int length = sequence_length(lead);
  if (length <= 1) return lead;
  CodePoint code = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    code = (code << 6) | (static_cast<unsigned char>(text[position++]) & 0x3Fu);
  }
  return code;
}

CodePoint previous_code_point(std::string_view text, std::size_t& position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0u) == 0x80u);
  std::size_t start = position;
  return next_code_point(text, start);
}

void append_code_point(std::string& text, CodePoint code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    text.push_back(static_cast<char>(bytes[static_cast<std::size_t>(i)]));
  }
}

bool is_white_space(CodePoint code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_mark(CodePoint code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

bool is_numeric(CodePoint code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_word(CodePoint code) {
  const auto kind = category(code);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_ME) ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_PC || code == 0x200C || code == 0x200D ||
         is_alphabetic_symbol(code);
}

bool is_punctuation(CodePoint code) {
  if (code < 0x80) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
           (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
  }
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

void append_lower_case(std::string& text, CodePoint code) {
  if (code == 0x130) {  // the one character whose lower case is two: i and a combining dot
    text += "i\xCC\x87";
    return;
  }
  const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(code));
  append_code_point(text, static_cast<CodePoint>(lower));
}

}  // namespace kvcache::detail
