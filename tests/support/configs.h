// Configs as the families read them, from the text of a config.json.
#pragma once

#include <string>
#include <vector>

#include "kvcache/models/registry.h"
#include "tests/support/refusal.h"

namespace kvcache::testing {

// Reads a config.json of this text.
inline ModelConfig read_config(const std::string& text) {
  const ConfigReader json = ConfigReader::from_text(text, "config.json");
  return model_families().find(json.text("model_type").value()).read_config(json);
}

// A config of a family with these fields besides.
inline ModelConfig config_with(const std::string& model_type, const std::string& fields) {
  return read_config(R"({"model_type": ")" + model_type + "\"" + (fields.empty() ? "" : ", ") +
                     fields + "}");
}

// Why such a config is refused.
inline std::string config_refusal(const std::string& model_type, const std::string& fields) {
  return refusal<ValueError>([&] { config_with(model_type, fields); });
}

inline std::vector<std::string> layer_types_of(const ModelConfig& config) {
  std::vector<std::string> types;
  for (const LayerSpec& spec : config.layer_specs()) types.push_back(spec.type);
  return types;
}

}  // namespace kvcache::testing
