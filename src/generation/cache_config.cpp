#include "generation/cache_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

#include "io/strict_json.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

using nlohmann::json;

// No setting is a list or an object; no message may be longer than its parts are.
constexpr int kMaxDepth = 16;

json settings_of(const GenerationConfig& config) {
  const std::string text = config.cache_config.value_or("{}");
  json settings = parse_strict_json(text, "cache_config must be a JSON object", kMaxDepth);
  check_value(settings.is_object(), "cache_config must be a JSON object, but is ", text);
  return settings;
}

// Where a setting goes.
using Field = std::variant<std::string QuantizedCacheConfig::*, bool QuantizedCacheConfig::*,
                           std::int64_t QuantizedCacheConfig::*,
                           std::optional<std::int64_t> QuantizedCacheConfig::*>;

struct Setting {
  const char* name;
  Field field;
};

using Config = QuantizedCacheConfig;
const std::array<Setting, 12> kSettings = {{{"backend", &Config::backend},
                                            {"nbits", &Config::nbits},
                                            {"axis_key", &Config::axis_key},
                                            {"axis_value", &Config::axis_value},
                                            {"q_group_size", &Config::q_group_size},
                                            {"residual_length", &Config::residual_length},
                                            {"key_nbits", &Config::key_nbits},
                                            {"value_nbits", &Config::value_nbits},
                                            {"rotate_keys", &Config::rotate_keys},
                                            {"pinned_tokens", &Config::pinned_tokens},
                                            {"first_dense_layers", &Config::first_dense_layers},
                                            {"last_dense_layers", &Config::last_dense_layers}}};

void set(const char* name, const json& value, std::string& field) {
  check_value(value.is_string(), "cache_config's ", name, " must be a string, but is ",
              value.dump());
  field = value.get<std::string>();
}

void set(const char* name, const json& value, bool& field) {
  check_value(value.is_boolean(), "cache_config's ", name, " must be true or false, but is ",
              value.dump());
  field = value.get<bool>();
}

template <typename Integer>
void set(const char* name, const json& value, Integer& field) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  check_value(value.is_number_integer() &&
                  (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost),
              "cache_config's ", name, " must be an integer of at most 63 bits, but is ",
              value.dump());
  field = value.get<std::int64_t>();
}

void take(const std::string& name, const json& value, QuantizedCacheConfig& result) {
  const auto found = std::find_if(kSettings.begin(), kSettings.end(),
                                  [&](const Setting& setting) { return name == setting.name; });
  if (found == kSettings.end()) {
    std::string names;
    for (const Setting& setting : kSettings)
      names += (names.empty() ? "" : ", ") + std::string(setting.name);
    throw ValueError(c10::str("cache_config has no field ", json(name).dump(),
                              "; the quantized cache takes ", names));
  }
  std::visit([&](auto field) { set(found->name, value, result.*field); }, found->field);
}

}  // namespace

QuantizedCacheConfig quantized_config(const GenerationConfig& config) {
  QuantizedCacheConfig result;
  const json settings = settings_of(config);
  for (const auto& [name, value] : settings.items()) {
    if (!value.is_null()) take(name, value, result);
  }
  return result;
}

bool has_no_cache_config(const GenerationConfig& config) { return settings_of(config).empty(); }

}  // namespace kvcache::detail
