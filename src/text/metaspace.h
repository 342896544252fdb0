// What "Metaspace" says as a pre-tokenizer and as a decoder: SentencePiece's way of writing a space
// as a visible character.
#pragma once

#include <string>

namespace kvcache::detail {

class JsonNode;

struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };

  std::string replacement;             // one character, usually U+2581
  Prepend prepend = Prepend::kAlways;  // before every part of a text, the text alone, or nothing
  bool split = true;                   // pieces begin at the character; else a part stays whole
};

// Throws ValueError on a bad field.
Metaspace metaspace_from_json(const JsonNode& node);

}  // namespace kvcache::detail
