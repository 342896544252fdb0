#include "kvcache/models/config_reader.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/strict_json.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/read_text_file.h"

namespace kvcache {

using nlohmann::json;

namespace {

constexpr int kMaxDepth = 32;

// How Transformers 5 writes an infinite number.
const json kInfinity{{"__float__", "Infinity"}};

// Python writes infinite numbers as a bare word, which is no JSON. The same text with the form
// above in its place, outside of strings.
std::string without_bare_infinity(std::string_view text) {
  constexpr std::string_view kWord = "Infinity";
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i, kWord.size()) == kWord) {
      result += kInfinity.dump();
      i += kWord.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    result += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) result += text[++i];
  }
  return result;
}

}  // namespace

struct ConfigReader::Node {
  std::string what;  // the file
  std::string path;  // "outer." of a nested object
  json object;

  // The value; null if it is absent or null.
  const json* find(std::string_view name) const {
    const auto found = object.find(name);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  std::string field(std::string_view name) const { return c10::str(what, ": ", path, name); }

  [[noreturn]] void refuse(std::string_view name, const json& value,
                           std::string_view wanted) const {
    std::string shown = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
    throw ValueError(c10::str(field(name), " is ", shown, "; it must be ", wanted));
  }

  std::int64_t as_integer(std::string_view name, const json& value, std::string_view wanted) const {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX));
    if (!fits) refuse(name, value, wanted);
    return value.get<std::int64_t>();
  }
};

ConfigReader ConfigReader::from_file(const std::filesystem::path& path) {
  return from_text(read_text_file(path), path.string());
}

ConfigReader ConfigReader::from_text(std::string_view text, std::string_view what) {
  json object = detail::parse_strict_json(without_bare_infinity(text), what, kMaxDepth);
  check_value(object.is_object(), what, ": not a JSON object");
  return ConfigReader(std::make_shared<const Node>(Node{std::string(what), "", std::move(object)}));
}

bool ConfigReader::contains(std::string_view name) const { return node_->object.contains(name); }

bool ConfigReader::is_text(std::string_view name) const {
  const json* value = node_->find(name);
  return value != nullptr && value->is_string();
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  return node_->as_integer(name, *value, "an integer");
}

std::optional<std::int64_t> ConfigReader::size(std::string_view name, std::int64_t limit) const {
  const std::optional<std::int64_t> value = integer(name);
  if (value && (*value < 1 || *value > limit)) {
    node_->refuse(name, *value, c10::str("from 1 to ", limit));
  }
  return value;
}

std::optional<double> ConfigReader::number(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    node_->refuse(name, *value, "a finite number");
  }
  return value->get<double>();
}

std::optional<bool> ConfigReader::flag(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) node_->refuse(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::text(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) node_->refuse(name, *value, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> ConfigReader::texts(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) node_->refuse(name, *value, "a list of strings");
  std::vector<std::string> result;
  for (const json& entry : *value) {
    if (!entry.is_string()) node_->refuse(name, *value, "a list of strings");
    result.push_back(entry.get<std::string>());
  }
  return result;
}

std::optional<std::vector<std::int64_t>> ConfigReader::integers(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) node_->refuse(name, *value, "a list of integers");
  std::vector<std::int64_t> result;
  for (const json& entry : *value) {
    result.push_back(node_->as_integer(name, entry, "a list of integers"));
  }
  return result;
}

std::optional<std::vector<double>> ConfigReader::numbers(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) node_->refuse(name, *value, "a list of finite numbers");
  std::vector<double> result;
  for (const json& entry : *value) {
    if (!entry.is_number() || !std::isfinite(entry.get<double>())) {
      node_->refuse(name, *value, "a list of finite numbers");
    }
    result.push_back(entry.get<double>());
  }
  return result;
}

std::optional<std::vector<double>> ConfigReader::numbers_to_infinity(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) node_->refuse(name, *value, "a list of numbers");
  std::vector<double> result;
  for (const json& entry : *value) {
    const bool infinite = entry == kInfinity;
    if (!infinite && !entry.is_number()) node_->refuse(name, *value, "a list of numbers");
    result.push_back(infinite ? std::numeric_limits<double>::infinity() : entry.get<double>());
  }
  return result;
}

std::optional<std::vector<std::int64_t>> ConfigReader::ids(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> result;
  for (const json& entry : value->is_array() ? *value : json::array({*value})) {
    const std::int64_t id = node_->as_integer(name, entry, "an integer or a list of integers");
    if (id >= 0) result.push_back(id);
  }
  return result;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view name) const {
  const json* value = node_->find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) node_->refuse(name, *value, "an object");
  return ConfigReader(
      std::make_shared<const Node>(Node{node_->what, c10::str(node_->path, name, "."), *value}));
}

std::string ConfigReader::field(std::string_view name) const { return node_->field(name); }

}  // namespace kvcache
