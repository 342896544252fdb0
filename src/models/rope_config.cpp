#include "models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/rope.h"

namespace kvcache::detail {
namespace {

double positive(const ConfigReader& json, std::string_view name, double fallback) {
  const double value = json.number(name).value_or(fallback);
  check_value(value > 0, json.field(name), " is ", value, "; it must be above 0");
  return value;
}

double required(const ConfigReader& json, std::string_view name) {
  check_value(json.number(name).has_value(), json.field(name), " is missing");
  return positive(json, name, 0);
}

double read_share(const ConfigReader& json, double fallback, const RopeRules& rules) {
  const double share = json.number("partial_rotary_factor").value_or(fallback);
  check_value(share == 1 || rules.partial, json.field("partial_rotary_factor"), " is ", share,
              "; this family rotates whole heads");
  check_value(share > 0 && share <= 1, json.field("partial_rotary_factor"), " is ", share,
              "; it must be above 0 and at most 1");
  return share;
}

void read_type(const ConfigReader& given, RopeConfig& rope, const RopeRules& rules) {
  const std::string_view key = given.text("rope_type") ? "rope_type" : "type";
  rope.type = given.text(key).value_or(rope.type);
  if (rules.longrope_names && (rope.type == "su" || rope.type == "yarn")) rope.type = "longrope";
  const std::vector<std::string> known = rope_types();
  check_value(std::find(known.begin(), known.end(), rope.type) != known.end(), given.field(key),
              " is '", rope.type, "'; known are ", c10::Join(", ", known));
}

void read_llama3(const ConfigReader& given, RopeConfig& rope) {
  rope.low_freq_factor = required(given, "low_freq_factor");
  rope.high_freq_factor = required(given, "high_freq_factor");
  check_value(rope.high_freq_factor > rope.low_freq_factor, given.field("high_freq_factor"), " is ",
              rope.high_freq_factor, "; it must be above low_freq_factor, ", rope.low_freq_factor);
}

// What YaRN's authors suggest to scale attention by.
double yarn_scale(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

void read_yarn(const ConfigReader& given, RopeConfig& rope) {
  // 0 counts as absent here, as in Transformers.
  const auto given_or = [&](std::string_view name, double fallback) {
    const double value = given.number(name).value_or(0);
    return value == 0 ? fallback : value;
  };
  rope.beta_fast = given_or("beta_fast", rope.beta_fast);
  rope.beta_slow = given_or("beta_slow", rope.beta_slow);
  check_value(rope.beta_slow > 0 && rope.beta_fast >= rope.beta_slow, given.field("beta_fast"),
              " is ", rope.beta_fast, "; it must be at least beta_slow, ", rope.beta_slow,
              ", which must be above 0");
  check_value(rope.theta > 1, given.field("rope_theta"), " is ", rope.theta,
              "; rope yarn needs one above 1");
  rope.truncate = given.flag("truncate").value_or(rope.truncate);
  const double weight = given_or("mscale", 0), weight_all = given_or("mscale_all_dim", 0);
  const double suggested = weight != 0 && weight_all != 0 ? yarn_scale(rope.factor, weight) /
                                                                yarn_scale(rope.factor, weight_all)
                                                          : yarn_scale(rope.factor, 1);
  rope.attention_factor = positive(given, "attention_factor", suggested);
}

void read_longrope(const ConfigReader& given, RopeConfig& rope) {
  for (const auto& [name, factors] : {std::pair{"short_factor", &rope.short_factor},
                                      std::pair{"long_factor", &rope.long_factor}}) {
    *factors = given.numbers(name).value_or(std::vector<double>{});
    check_value(!factors->empty() && std::all_of(factors->begin(), factors->end(),
                                                 [](double factor) { return factor > 0; }),
                given.field(name), " must be a list of numbers above 0, one a frequency");
  }
  const auto length = static_cast<double>(rope.original_max_position_embeddings);
  check_value(length > 1, given.field("original_max_position_embeddings"),
              " must be above 1 for rope longrope");
  const double suggested =
      rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(length));
  rope.attention_factor = positive(given, "attention_factor", suggested);
}

// Of types that extend a model beyond the length it was first trained on.
void read_original_length(const ConfigReader& given, const ModelConfig& config, RopeConfig& rope,
                          const std::optional<std::int64_t>& own) {
  std::optional<std::int64_t> length = own;
  if (!length) length = given.size("original_max_position_embeddings");
  rope.original_max_position_embeddings = length.value_or(config.max_position_embeddings);
}

}  // namespace

RopeConfig read_rope_parameters(const std::optional<ConfigReader>& given, const ModelConfig& config,
                                RopeConfig defaults, const RopeRules& rules) {
  RopeConfig rope = std::move(defaults);
  if (!given) return rope;
  rope.theta = positive(*given, "rope_theta", rope.theta);
  rope.partial_rotary_factor = read_share(*given, rope.partial_rotary_factor, rules);
  read_type(*given, rope, rules);
  if (rope.type == "default") return rope;
  const auto longest = static_cast<double>(config.max_position_embeddings);
  if (rope.type == "dynamic") {
    rope.original_max_position_embeddings = config.max_position_embeddings;
  } else if (rope.type != "linear") {
    read_original_length(*given, config, rope, rules.original_max_position_embeddings);
  }
  const bool derived = (rope.type == "longrope" || rope.type == "yarn") && !given->number("factor");
  rope.factor = derived ? longest / static_cast<double>(rope.original_max_position_embeddings)
                        : required(*given, "factor");
  check_value(rope.factor >= 1 || rope.type != "dynamic", given->field("factor"), " is ",
              rope.factor, "; rope dynamic needs at least 1");
  if (rope.type == "llama3") read_llama3(*given, rope);
  if (rope.type == "yarn") read_yarn(*given, rope);
  if (rope.type == "longrope") read_longrope(*given, rope);
  return rope;
}

RopeConfig read_rope(const ConfigReader& json, const ModelConfig& config, const RopeRules& rules) {
  std::optional<ConfigReader> given = json.object("rope_scaling");
  if (!given) given = json.object("rope_parameters");
  if (given && !rules.by_layer_type) {
    for (const std::string_view type : {kFullAttention, kSlidingAttention, kChunkedAttention}) {
      check_value(!given->contains(type), given->field(type),
                  ": rope parameters per layer type are not known for this family");
    }
  }
  RopeRules own = rules;
  if (const auto length = json.size("original_max_position_embeddings")) {
    own.original_max_position_embeddings = length;
  }
  RopeConfig defaults = config.rope;
  defaults.theta = positive(json, "rope_theta", defaults.theta);
  defaults.partial_rotary_factor = read_share(json, defaults.partial_rotary_factor, rules);
  if (rules.by_layer_type) return defaults;
  return read_rope_parameters(given, config, defaults, own);
}

}  // namespace kvcache::detail
