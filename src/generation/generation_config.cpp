#include "kvcache/generation/generation_config.h"

#include <algorithm>

#include "generation/config_checks.h"
#include "generation/json_fields.h"
#include "generation/not_built.h"

namespace kvcache {

GenerationConfig GenerationConfig::over(const GenerationConfig& base) const {
  GenerationConfig merged = base;
  for (const auto& field : detail::supported_fields()) field.take(merged, *this);
  return merged;
}

bool GenerationConfig::ends_at(std::int64_t token) const {
  return eos_token_id &&
         std::find(eos_token_id->begin(), eos_token_id->end(), token) != eos_token_id->end();
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
