// The generate program's command line.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/generation/generation_config.h"

namespace generate_program {

struct Arguments {
  std::filesystem::path model;
  // One of these three.
  std::vector<std::string> prompts;
  std::optional<std::filesystem::path> messages;
  std::optional<std::filesystem::path> input_ids;
  std::optional<std::filesystem::path> generation_config;
  kvcache::GenerationConfig overrides;  // fields given as options
  std::optional<std::uint64_t> seed;
  c10::Device device = c10::kCPU;
  std::optional<c10::ScalarType> dtype;  // absent: the checkpoint's
  std::optional<int> threads;
  std::optional<std::filesystem::path> save_logits;
  std::optional<std::filesystem::path> save_cache;
  std::optional<std::filesystem::path> load_cache;
  bool json = false;
  bool quiet = false;
};

// Absent after --help or --version, which it prints. Throws kvcache::ValueError for wrong usage and
// for options whose feature is not there yet.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv);

}  // namespace generate_program
