// Reads the values of generation settings. Whatever does not fit throws std::string: what the value
// should have been.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/generation/generation_config.h"

namespace kvcache::detail {

// For bool, std::int64_t, double, std::string, std::vector<std::int64_t> (one id or a list),
// std::vector<std::vector<std::int64_t>>, std::vector<std::string> (one text or a list),
// EarlyStopping, std::vector<SequenceBias> and ExponentialDecayLengthPenalty.
template <typename T>
T read_value(const nlohmann::json& value);

}  // namespace kvcache::detail
