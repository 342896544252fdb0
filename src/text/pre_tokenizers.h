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
  // Appends the pieces of `text` (well-formed UTF-8, not empty), none of them empty. `begins_text`
  // says that it stands at the very beginning, not behind an added token.
  virtual void split(std::string_view text, bool begins_text,
                     std::vector<std::string>& pieces) const = 0;
  // True if `begins_text` makes a difference.
  virtual bool depends_on_place() const { return false; }
};

// Throws ValueError on an unknown type or a bad field.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const JsonNode& node);

}  // namespace kvcache::detail
