// The fields of Transformers 5.24's GenerationConfig: those read here, and what each other one must
// be to be ignored.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "kvcache/generation/generation_config.h"

namespace kvcache::detail {

// A field that generate() knows.
struct SupportedField {
  std::string_view name;
  // Reads a value that is not null. Throws std::string, what the value should have been.
  std::function<void(GenerationConfig&, const nlohmann::json&)> read;
  // Takes the field from a config in which it is set.
  std::function<void(GenerationConfig&, const GenerationConfig&)> take;
};

// A field that is not supported: only values that ask for nothing are accepted.
struct UnsupportedField {
  std::string_view name;
  std::vector<nlohmann::json> accepted;  // besides null
};

const std::vector<SupportedField>& supported_fields();
const std::vector<UnsupportedField>& unsupported_fields();

// Fields that say where a config comes from, not how to generate.
bool is_metadata(std::string_view name);

}  // namespace kvcache::detail
