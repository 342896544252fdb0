// What the config.json files of llama-like families have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/models/config.h"
#include "kvcache/models/config_reader.h"
#include "models/rope_config.h"

namespace kvcache::detail {

// Reads what every family has: model_type, sizes without heads, activation, token ids, dtype.
// `defaults` are the family's: what is absent stays as it is there.
ModelConfig read_base_config(const ConfigReader& json, ModelConfig defaults);

// The number that a norm adds to its squares, under the family's name for it.
double read_norm_eps(const ConfigReader& json, std::string_view name, double fallback);

// Reads the same and heads, norm and rope. Leaves biases, windows and layer types to the family.
ModelConfig read_decoder_config(const ConfigReader& json, ModelConfig defaults,
                                const RopeRules& rope = {});

// The `layer_types` of a config, checked: one a layer, full or sliding, the latter with a window;
// or full and chunked where the config has an attention_chunk_size. Absent: `derived`.
std::vector<std::string> read_layer_types(const ConfigReader& json, const ModelConfig& config,
                                          std::vector<std::string> derived);

// The same for a family whose layers are all alike: a list that says otherwise is refused.
std::vector<std::string> uniform_layer_types(const ConfigReader& json, const ModelConfig& config,
                                             std::string_view type);

// A soft cap, null for none; `fallback` where the field is absent.
std::optional<double> read_softcap(const ConfigReader& json, std::string_view name,
                                   std::optional<double> fallback);

// sliding_window, use_sliding_window, max_window_layers and layer_types as qwen families have them.
void read_optional_windows(const ConfigReader& json, ModelConfig& config);

}  // namespace kvcache::detail
