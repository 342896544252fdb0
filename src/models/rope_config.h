// Rope as config.json writes it: the older flat fields or objects of parameters.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcache/models/config.h"
#include "kvcache/models/config_reader.h"

namespace kvcache::detail {

// In what families differ.
struct RopeRules {
  bool partial = false;         // whether only a part of each head may turn
  bool longrope_names = false;  // whether 'su' and 'yarn' are older names of longrope
  bool by_layer_type = false;   // whether each type of layer has parameters of its own
  // Of a family whose config class has this field beside the rope's own.
  std::optional<std::int64_t> original_max_position_embeddings = {};
};

// The rope of a config whose sizes are read: `rope_scaling`, the older name, wins over
// `rope_parameters`, as in Transformers; what is absent is `defaults`. Throws ValueError naming the
// field at fault.
RopeConfig read_rope(const ConfigReader& json, const ModelConfig& config, const RopeRules& rules);

// Parameters that were found in `given` (absent: none) by whatever name, over `defaults`.
RopeConfig read_rope_parameters(const std::optional<ConfigReader>& given, const ModelConfig& config,
                                RopeConfig defaults, const RopeRules& rules);

}  // namespace kvcache::detail
