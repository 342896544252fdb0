// The model of a tokenizer: it turns one piece of text into token ids, and knows the vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail {

class JsonNode;

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `piece` (well-formed UTF-8, not empty).
  virtual void tokenize(std::string_view piece, std::vector<std::int64_t>& ids) const = 0;
  virtual std::optional<std::int64_t> token_to_id(std::string_view token) const = 0;
  // Null for an id that is not in the model's vocabulary.
  virtual const std::string* id_to_token(std::int64_t id) const = 0;
  // Number of tokens in the model's vocabulary.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<std::string> unk_token() const = 0;
};

// Throws ValueError on an unknown type or a bad field.
std::unique_ptr<const Model> make_model(const JsonNode& node);

}  // namespace kvcache::detail
