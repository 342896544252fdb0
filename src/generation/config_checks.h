// What the fields of a GenerationConfig must be, in groups. Each throws ValueError naming the
// field, its value and what would be right.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/generation_config.h"

namespace kvcache::detail {

void check_lengths(const GenerationConfig& config);
void check_choice(const GenerationConfig& config);
void check_beams(const GenerationConfig& config);
void check_drafts(const GenerationConfig& config);
void check_processors(const GenerationConfig& config);
void check_cache(const GenerationConfig& config);
void check_special_tokens(const GenerationConfig& config);

// All of them, and that a cache which was passed in (null: none) is what the config asks for.
void check_call(const GenerationConfig& config, const Cache* past_key_values);

inline void check_at_least(const char* name, const std::optional<std::int64_t>& value,
                           std::int64_t smallest) {
  check_value(!value || *value >= smallest, name, " must be at least ", smallest, ", but is ",
              value.value_or(0));
}

inline void check_at_most(const char* name, const std::optional<std::int64_t>& value,
                          std::int64_t largest) {
  check_value(value.value_or(largest) <= largest, name, " must be at most ", largest, ", but is ",
              value.value_or(0));
}

inline void check_fraction(const char* name, const std::optional<double>& value) {
  check_value(!value || (*value >= 0 && *value <= 1), name, " must be in [0, 1], but is ",
              value.value_or(0));
}

// Whether scores, float32, can be multiplied with it and divided by it.
inline bool is_float_factor(double value) {
  return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
}

inline void check_factor(const char* name, const std::optional<double>& value) {
  check_value(is_float_factor(value.value_or(1)), name,
              " must be above 0 (1: off) and a normal float32, but is ", value.value_or(1));
}

inline void check_ids(const char* name, const std::optional<std::vector<std::int64_t>>& ids) {
  for (const std::int64_t id : ids.value_or(std::vector<std::int64_t>{})) {
    check_at_least(name, id, 0);
  }
}

}  // namespace kvcache::detail
