#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "generation/cache_choice.h"
#include "generation/config_checks.h"
#include "io/strict_json.h"

namespace kvcache::detail {
namespace {

using nlohmann::json;

// No setting is a list or an object; no message may be longer than its parts are.
constexpr int kMaxDepth = 16;

// What a quantizing backend takes.
struct Backend {
  std::string_view name;
  std::vector<std::int64_t> bits;  // none: of one width, and without groups
  std::vector<std::int64_t> axes = {};
};

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {"quanto", {2, 4}, {0, -1}}, {"hqq", {1, 2, 3, 4, 8}, {0, 1}}, {"fp8", {}}};
  return all;
}

const Backend& backend_of(const json& settings) {
  const json name = settings.value("backend", json("quanto"));
  const auto found = std::find_if(backends().begin(), backends().end(),
                                  [&](const Backend& backend) { return name == backend.name; });
  check_value(found != backends().end(), "there is no backend ", name.dump(),
              " in cache_config; it can be \"quanto\", \"hqq\" or \"fp8\"");
  return *found;
}

void check_one_of(const std::string& name, const json& value,
                  const std::vector<std::int64_t>& allowed, std::string_view backend) {
  check_value(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), "cache_config's ",
              name, " must be one of ", json(allowed).dump(), " for ", backend, ", but is ",
              value.dump());
}

void check_whole_number(const std::string& name, const json& value, std::int64_t smallest) {
  check_value(value.is_number_integer() && value >= smallest, "cache_config's ", name,
              " must be an integer of at least ", smallest, ", but is ", value.dump());
}

void check_quantized(const json& settings) {
  const Backend& backend = backend_of(settings);
  for (const auto& [name, value] : settings.items()) {
    if (name == "backend" || value.is_null()) continue;
    const bool known = name == "nbits" || name == "axis_key" || name == "axis_value" ||
                       name == "q_group_size" || name == "residual_length";
    check_value(
        known, "cache_config has no field ", json(name).dump(),
        "; the quantized cache takes backend, nbits, axis_key, axis_value, q_group_size and "
        "residual_length");
    check_value(!backend.bits.empty(), "cache_config's ", name, " has no use: ", backend.name,
                " quantizes whole tensors; leave it out, or take quanto or hqq");
    if (name == "nbits") check_one_of(name, value, backend.bits, backend.name);
    if (name.starts_with("axis_")) check_one_of(name, value, backend.axes, backend.name);
    if (name == "q_group_size") check_whole_number(name, value, 1);
    if (name == "residual_length") check_whole_number(name, value, 0);
  }
}

}  // namespace

void check_cache(const GenerationConfig& config) {
  const std::string_view kind = cache_kind(config);
  check_value(!kind.empty(), "there is no cache_implementation \"",
              config.cache_implementation.value_or(""),
              "\"; it can be \"dynamic\", \"static\", \"offloaded\", \"offloaded_static\" or "
              "\"quantized\"");
  const std::string text = config.cache_config.value_or("{}");
  const json settings = parse_strict_json(text, "cache_config must be a JSON object", kMaxDepth);
  check_value(settings.is_object(), "cache_config must be a JSON object, but is ", text);
  if (kind == "quantized") {
    check_quantized(settings);
  } else {
    check_value(settings.empty(), "cache_config = ", text, " has no use: the ", kind,
                " cache has no settings; leave it out");
  }
  check_value(config.use_cache.value_or(true) || !config.prefill_chunk_size,
              "prefill_chunk_size = ", config.prefill_chunk_size.value_or(0),
              " needs a cache, which keeps one piece while the next is computed; leave it out or "
              "set use_cache to true");
}

void check_call(const GenerationConfig& config, const Cache* past_key_values) {
  config.validate();
  if (past_key_values == nullptr) return;
  check_value(config.use_cache.value_or(true),
              "past_key_values was passed, but use_cache is false; drop one of them");
  check_value(
      !config.cache_implementation,
      "past_key_values was passed together with "
      "cache_implementation = \"",
      config.cache_implementation.value_or(""),
      "\", which asks for a new cache; drop one of them (a checkpoint's own config may have "
      "set it)");
}

}  // namespace kvcache::detail
