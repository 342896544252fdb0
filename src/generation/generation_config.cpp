#include "kvcache/generation/generation_config.h"

#include "generation/config_checks.h"
#include "generation/json_fields.h"
#include "generation/not_built.h"

namespace kvcache {

GenerationConfig GenerationConfig::over(const GenerationConfig& base) const {
  GenerationConfig merged = base;
  for (const auto& field : detail::supported_fields()) field.take(merged, *this);
  return merged;
}

void GenerationConfig::validate() const {
  detail::check_lengths(*this);
  detail::check_choice(*this);
  detail::check_beams(*this);
  detail::check_drafts(*this);
  detail::check_processors(*this);
  detail::check_cache(*this);
  detail::check_special_tokens(*this);
  detail::check_built(*this);
}

}  // namespace kvcache
