// JSON from files that nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace kvcache::detail {

// Parses `text`. What the plain parser would let pass is refused: a name twice in one object
// (it would keep the last), nesting deeper than `max_depth` objects and arrays, a NUL byte (it
// would stop there). Throws ValueError, and only that; the message starts with `what`.
nlohmann::json parse_strict_json(std::string_view text, std::string_view what, int max_depth);

}  // namespace kvcache::detail
