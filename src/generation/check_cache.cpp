#include "generation/cache_choice.h"
#include "generation/cache_config.h"
#include "generation/config_checks.h"

namespace kvcache::detail {

void check_cache(const GenerationConfig& config) {
  const std::string_view kind = cache_kind(config);
  check_value(!kind.empty(), "there is no cache_implementation \"",
              config.cache_implementation.value_or(""),
              "\"; it can be \"dynamic\", \"static\", \"offloaded\", \"offloaded_static\" or "
              "\"quantized\"");
  if (kind == "quantized") {
    make_codecs(quantized_config(config));
  } else {
    check_value(has_no_cache_config(config), "cache_config = ", config.cache_config.value_or("{}"),
                " has no use: the ", kind, " cache has no settings; leave it out");
  }
  check_value(config.use_cache.value_or(true) || !config.prefill_chunk_size,
              "prefill_chunk_size = ", config.prefill_chunk_size.value_or(0),
              " needs a cache, which keeps one piece while the next is computed; leave it out or "
              "set use_cache to true");
}

void check_call(const GenerationConfig& config, const Cache* past_key_values) {
  config.validate();
  if (past_key_values == nullptr) return;
  check_value(config.use_cache.value_or(true),
              "past_key_values was passed, but use_cache is false; drop one of them");
  check_value(
      !config.cache_implementation,
      "past_key_values was passed together with "
      "cache_implementation = \"",
      config.cache_implementation.value_or(""),
      "\", which asks for a new cache; drop one of them (a checkpoint's own config may have "
      "set it)");
}

}  // namespace kvcache::detail
