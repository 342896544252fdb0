// The functions that fill the registry of families, one a source file.
#pragma once

#include "kvcache/models/registry.h"

namespace kvcache::detail {

void add_gemma2(ModelRegistry& registry);
void add_gemma3_text(ModelRegistry& registry);
void add_jamba(ModelRegistry& registry);
void add_lfm2(ModelRegistry& registry);
void add_llama(ModelRegistry& registry);
void add_llama4_text(ModelRegistry& registry);
void add_mamba(ModelRegistry& registry);
void add_mamba2(ModelRegistry& registry);
void add_mistral(ModelRegistry& registry);
void add_phi3(ModelRegistry& registry);
void add_qwen2(ModelRegistry& registry);
void add_qwen3(ModelRegistry& registry);
void add_qwen3_next(ModelRegistry& registry);
void add_t5(ModelRegistry& registry);

}  // namespace kvcache::detail
