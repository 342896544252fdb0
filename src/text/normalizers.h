// Normalizers of tokenizer.json: what happens to a text before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kvcache::detail {

class JsonNode;

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` and the result are well-formed UTF-8.
  virtual std::string normalize(std::string_view text) const = 0;
  // False if what begins the result may come from a later place than what begins the text.
  virtual bool keeps_start() const { return true; }
};

// Throws ValueError on an unknown type or a bad field.
std::unique_ptr<const Normalizer> make_normalizer(const JsonNode& node);

}  // namespace kvcache::detail
