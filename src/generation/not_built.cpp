#include "generation/not_built.h"

#include <string>

#include "generation/cache_choice.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

void refuse_cache(const char* kind, const GenerationConfig& config) {
  check_value(cache_kind(config) != kind, "cache_implementation \"",
              config.cache_implementation.value_or(""),
              "\" is not supported yet; leave it out or set it to \"dynamic\", \"static\" or "
              "\"quantized\"");
}

}  // namespace

void check_built(const GenerationConfig& config) {
  refuse_cache("offloaded", config);
  refuse_cache("offloaded_static", config);
}

}  // namespace kvcache::detail
