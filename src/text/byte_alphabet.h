// The byte-level alphabet: one printable character for each of the 256 bytes, as GPT-2 chose them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace kvcache::detail {

// UTF-8 of the characters that stand for `bytes`.
std::string to_byte_alphabet(std::string_view bytes);

// The bytes that `text` stands for; absent if a character is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace kvcache::detail
