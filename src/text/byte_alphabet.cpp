#include "text/byte_alphabet.h"

#include <array>

namespace kvcache::detail {

namespace {

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable bytes stand for themselves (Latin-1); the 68 others follow each other from U+0100.
constexpr unsigned kAlphabetEnd = 0x144;

constexpr std::array<CodePoint, 256> make_characters() {
  std::array<CodePoint, 256> characters{};
  CodePoint next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    characters[byte] = is_printable(byte) ? byte : next++;
  }
  return characters;
}
constexpr auto kCharacters = make_characters();

constexpr std::array<int, kAlphabetEnd> make_bytes() {
  std::array<int, kAlphabetEnd> bytes{};
  for (int& byte : bytes) byte = -1;
  for (unsigned byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int>(byte);
  return bytes;
}
constexpr auto kBytes = make_bytes();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes)
    append_code_point(text, kCharacters[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = next_code_point(text, at);
    if (code >= kAlphabetEnd || kBytes[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[code]));
  }
  return bytes;
}

}  // namespace kvcache::detail
