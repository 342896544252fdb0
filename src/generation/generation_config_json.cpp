#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "generation/json_fields.h"
#include "io/posix_file.h"
#include "io/strict_json.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/io/read_text_file.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

json parse_object(std::string_view text, std::string_view source) {
  json object = detail::parse_strict_json(text, source, kMaxDepth);
  if (!object.is_object()) {
    throw ValueError(fmt::format("{} must be a JSON object of generation settings, but is {}",
                                 source, object.type_name()));
  }
  return object;
}

template <typename Fields>
auto find_field(const Fields& fields, std::string_view name) {
  return std::find_if(fields.begin(), fields.end(),
                      [&](const auto& field) { return field.name == name; });
}

std::string shortened(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Reads one field; false if it is none of those supported.
bool read_supported(GenerationConfig& config, const std::string& name, const json& value,
                    std::string_view source) {
  const auto& supported = detail::supported_fields();
  const auto field = find_field(supported, name);
  if (field == supported.end()) return false;
  if (value.is_null()) return true;
  try {
    field->read(config, value);
  } catch (const std::string& expected) {
    throw ValueError(
        fmt::format("{}: {} must be {}, but is {}", source, name, expected, shortened(value)));
  }
  return true;
}

void check_unsupported(const std::string& name, const json& value, std::string_view source) {
  if (detail::is_metadata(name)) return;
  const auto& unsupported = detail::unsupported_fields();
  const auto field = find_field(unsupported, name);
  if (field == unsupported.end()) {
    throw ValueError(
        fmt::format("{}: GenerationConfig has no field {} (Transformers 5.24); check its spelling",
                    source, shortened(name)));
  }
  const auto& accepted = field->accepted;
  if (value.is_null() || std::find(accepted.begin(), accepted.end(), value) != accepted.end()) {
    return;
  }
  throw ValueError(fmt::format("{}: {} = {} is not supported; leave it out{}", source, name,
                               shortened(value),
                               accepted.empty() ? "" : " or set it to " + accepted.front().dump()));
}

// The special tokens that a checkpoint's config.json names.
GenerationConfig from_model_config(std::string_view text, std::string_view source) {
  const json object = parse_object(text, source);
  GenerationConfig config;
  for (const char* name :
       {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}) {
    if (object.contains(name)) read_supported(config, name, object.at(name), source);
  }
  return config;
}

}  // namespace

GenerationConfig GenerationConfig::from_json(std::string_view text, std::string_view source) {
  GenerationConfig config;
  const json object = parse_object(text, source);
  for (const auto& [name, value] : object.items()) {
    if (!read_supported(config, name, value, source)) check_unsupported(name, value, source);
  }
  return config;
}

GenerationConfig GenerationConfig::from_pretrained(const std::filesystem::path& folder) {
  detail::check_checkpoint_folder(folder);
  const std::filesystem::path own = folder / "generation_config.json";
  if (detail::is_present(own)) return from_json(read_text_file(own), own.string());
  const std::filesystem::path model = folder / "config.json";
  if (detail::is_present(model)) {
    return from_model_config(read_text_file(model), model.string());
  }
  return {};
}

}  // namespace kvcache
