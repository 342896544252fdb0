// A template's values as JSON text again.
#pragma once

#include <string>

#include "chat/value.h"

namespace kvcache::detail::jinja {

// What parse_json_value() reads as `value`, which it made or is made of such. On one line without
// spaces for a negative indent, else each element on a line of its own behind `indent` spaces for
// each level.
std::string json_text(const Value& value, int indent = -1);

}  // namespace kvcache::detail::jinja
