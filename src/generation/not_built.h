// What a config can ask for and generate() does not do yet.
#pragma once

#include "kvcache/generation/generation_config.h"

namespace kvcache::detail {

// Throws ValueError naming a field and its value, if its feature is not there yet.
void check_built(const GenerationConfig& config);

}  // namespace kvcache::detail
