// Pre-tokenizers of tokenizer.json: how a normalized text is cut into the pieces that the model
// sees.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail {

class JsonNode;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Appends the pieces of `text` (well-formed UTF-8, not empty), none of them empty.
  virtual void split(std::string_view text, std::vector<std::string>& pieces) const = 0;
};

// Throws ValueError on an unknown type or a bad field.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const JsonNode& node);

}  // namespace kvcache::detail
