// The functions that fill the registry of families, one a source file.
#pragma once

#include "kvcache/models/registry.h"

namespace kvcache::detail {

void add_llama(ModelRegistry& registry);
void add_mistral(ModelRegistry& registry);
void add_qwen2(ModelRegistry& registry);
void add_qwen3(ModelRegistry& registry);

}  // namespace kvcache::detail
