#include "text/json_node.h"

#include <limits>

#include "kvcache/core/errors.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

// Components nest (a Sequence in a Sequence); deeper than this no real file goes.
constexpr int kMaxDepth = 32;

}  // namespace

std::optional<std::int64_t> as_token_id(const nlohmann::json& value) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<std::int64_t>();  // what is too large for it becomes negative
  return id >= 0 && id <= kMax ? std::optional(id) : std::nullopt;
}

nlohmann::json parse_json(std::string_view text, std::string_view name) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(c10::str(name, " is not valid JSON: ", error.what()));
  }
}

JsonNode JsonNode::child(const nlohmann::json& value, std::string path) const {
  check_value(depth_ < kMaxDepth, path, " is nested deeper than ", kMaxDepth, " levels");
  JsonNode node(value, std::move(path));
  node.depth_ = depth_ + 1;
  return node;
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!value_->is_object()) fail("an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return child(*found, c10::str(path_, ".", key));
}

JsonNode JsonNode::at(std::string_view key) const {
  auto node = find(key);
  check_value(node.has_value(), path_, ".", key, " is missing");
  return *std::move(node);
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) fail("an array");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    nodes.push_back(child((*value_)[i], c10::str(path_, "[", i, "]")));
  }
  return nodes;
}

std::string JsonNode::string() const {
  if (!value_->is_string()) fail("a string");
  return value_->get<std::string>();
}

std::string JsonNode::one_character() const {
  std::string text = string();
  std::size_t end = 0;
  if (!text.empty()) next_code_point(text, end);
  if (text.empty() || end != text.size()) fail("one character");
  return text;
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

std::int64_t JsonNode::token_id() const {
  const auto id = as_token_id(*value_);
  if (!id) fail("an integer from 0 to 2147483647");
  return *id;
}

bool JsonNode::boolean_or(std::string_view key, bool absent) const {
  const auto node = find(key);
  return node ? node->boolean() : absent;
}

std::optional<std::string> JsonNode::string_if(std::string_view key) const {
  const auto node = find(key);
  if (!node) return std::nullopt;
  return node->string();
}

void JsonNode::fail(std::string_view expected) const {
  constexpr std::size_t kShown = 60;
  std::string shown = value_->is_structured() ? value_->type_name() : value_->dump();
  if (shown.size() > kShown) shown = c10::str(value_->type_name(), " of ", shown.size(), " bytes");
  throw ValueError(c10::str(path_, " must be ", expected, ", not ", shown));
}

void fail_unknown_type(const JsonNode& node, const std::vector<const char*>& known) {
  std::string list;
  for (const char* name : known) list += (list.empty() ? "" : ", ") + std::string(name);
  throw ValueError(c10::str(node.path(), ".type is \"", node.at("type").string(),
                            "\", which is not known here. Known: ", list));
}

}  // namespace kvcache::detail
