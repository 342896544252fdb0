// What the gemma families have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/models/config.h"
#include "kvcache/models/config_reader.h"
#include "kvcache/models/decoder.h"

namespace kvcache::detail {

// Reads the activation, biases, the window and the scale of scores.
void read_gemma(const ConfigReader& json, ModelConfig& config);

// Sliding layers, of which each n-th is a full one.
std::vector<std::string> every_nth_full(const ModelConfig& config, std::int64_t n);

// Sandwich norms that weigh by 1 + w, and scaled embeddings.
DecoderStyle gemma_style(const ModelConfig& config);

}  // namespace kvcache::detail
