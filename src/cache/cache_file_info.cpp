#include <algorithm>
#include <nlohmann/json.hpp>

#include "cache/cache_file_section.h"
#include "kvcache/cache/serialization.h"

namespace kvcache {
namespace {

using nlohmann::json;

// A full layer of a static cache says how many tokens it has room for, as does one whose window is
// larger; where all layers are rings, any room above their windows makes the same layers.
std::int64_t max_cache_len(const detail::CacheFileSection& file) {
  std::int64_t full = 0, largest_window = 0;
  for (const json& layer : file.layers()) {
    const std::int64_t window =
        file.checked_integer(file.field(file.field(layer, "spec"), "window"), "window");
    const std::int64_t most =
        file.checked_integer(file.field(layer, "max_length"), "max_length", /*least=*/-1);
    std::int64_t& largest = most == window ? largest_window : full;
    largest = std::max(largest, most);
  }
  return full > 0 ? full : largest_window + 1;
}

CacheFileInfo info_of(const detail::CacheFileSection& cache) {
  return {.kind = cache.text("kind"),
          .fingerprint = {},  // the whole file's
          .batch = cache.integer("batch"),
          .tokens = cache.integer("seen"),
          .max_cache_len = max_cache_len(cache)};
}

}  // namespace

CacheFileInfo read_cache_file_info(const std::filesystem::path& path) {
  const auto file = detail::CacheFileSection::open(path);
  CacheFileInfo info;
  if (file.text("kind") == "encoder_decoder") {
    info = info_of(file.part(detail::kOwnSide));
    info.parts = {info, info_of(file.part(detail::kEncoderSide))};
    info.kind = file.text("kind");
  } else {
    info = info_of(file);
  }
  info.fingerprint = file.text("fingerprint");
  return info;
}

}  // namespace kvcache
