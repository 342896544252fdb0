// A value inside a parsed JSON file that knows where it stands, so that every error about its type
// or range names the field. Kept out of include/: nlohmann's header stays private to the library.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::detail {

// The value as a token id, an integer in [0, 2^31); absent if it is none.
std::optional<std::int64_t> as_token_id(const nlohmann::json& value);

// Parses JSON text; throws ValueError that begins with `name` (a file's path or such).
nlohmann::json parse_json(std::string_view text, std::string_view name);

// Refers to a value owned elsewhere. All accessors throw ValueError naming the path and what was
// found.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  bool is_null() const { return value_->is_null(); }
  // The member `key` of an object; absent where it is missing or null.
  std::optional<JsonNode> find(std::string_view key) const;
  JsonNode at(std::string_view key) const;
  std::vector<JsonNode> elements() const;

  std::string string() const;
  // A string of exactly one code point.
  std::string one_character() const;
  bool boolean() const;
  // A token id: an integer in [0, 2^31).
  std::int64_t token_id() const;
  std::int64_t count() const { return token_id(); }

  bool boolean_or(std::string_view key, bool absent) const;
  std::optional<std::string> string_if(std::string_view key) const;

  [[noreturn]] void fail(std::string_view expected) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  int depth_ = 0;

  JsonNode child(const nlohmann::json& value, std::string path) const;
};

// One type of component that a tokenizer.json can name, e.g. {"NFC", make_nfc}.
template <typename Component>
struct ComponentKind {
  const char* type;
  std::unique_ptr<const Component> (*make)(const JsonNode& node);
};

// Throws ValueError about node["type"], listing the `known` names.
[[noreturn]] void fail_unknown_type(const JsonNode& node, const std::vector<const char*>& known);

// Makes the component that node["type"] names out of `kinds`.
template <typename Component>
std::unique_ptr<const Component> make_component(const JsonNode& node,
                                                std::span<const ComponentKind<Component>> kinds) {
  const std::string type = node.at("type").string();
  std::vector<const char*> known;
  for (const auto& kind : kinds) {
    if (type == kind.type) return kind.make(node);
    known.push_back(kind.type);
  }
  fail_unknown_type(node, known);
}

}  // namespace kvcache::detail
