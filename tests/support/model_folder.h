// Where scripts/fetch_model.py puts models.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvcache::testing {

// ${KVCACHE_MODELS:-${XDG_CACHE_HOME:-~/.cache}/kvcache/models}/<name>
inline std::filesystem::path model_folder(const std::string& name) {
  const auto variable = [](const char* which) {
    const char* value = std::getenv(which);
    return std::filesystem::path(value != nullptr ? value : "");
  };
  std::filesystem::path models = variable("KVCACHE_MODELS");
  if (models.empty()) {
    const std::filesystem::path cache = variable("XDG_CACHE_HOME");
    models = (cache.empty() ? variable("HOME") / ".cache" : cache) / "kvcache" / "models";
  }
  return models / name;
}

}  // namespace kvcache::testing
