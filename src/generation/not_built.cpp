#include "generation/not_built.h"

#include <string>

#include "generation/cache_choice.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

// A number that asks for something unless it is `off`.
template <typename T>
void refuse(const char* name, const std::optional<T>& value, T off) {
  check_value(value.value_or(off) == off, name, " = ", value.value_or(off),
              " is not supported yet; leave it out or set it to ", off);
}

void refuse_cache(const char* kind, const GenerationConfig& config) {
  check_value(cache_kind(config) != kind, "cache_implementation \"",
              config.cache_implementation.value_or(""),
              "\" is not supported yet; leave it out or set it to \"dynamic\" or \"static\"");
}

}  // namespace

void check_built(const GenerationConfig& config) {
  refuse<std::int64_t>("num_beams", config.num_beams, 1);

  refuse_cache("offloaded", config);
  refuse_cache("offloaded_static", config);
  refuse_cache("quantized", config);
}

}  // namespace kvcache::detail
