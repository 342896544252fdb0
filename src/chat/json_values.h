// JSON text as a template's values: keys in their order, integers exact.
#pragma once

#include <string_view>

#include "chat/value.h"

namespace kvcache::detail::jinja {

// Throws ValueError that begins with `name` where the text is no JSON, holds an integer of more
// than 64 bits or nests deeper than 100 levels.
Value parse_json_value(std::string_view text, std::string_view name);

}  // namespace kvcache::detail::jinja
