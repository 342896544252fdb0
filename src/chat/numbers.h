// Text as numbers, as Python's int() and float() read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvcache::detail::jinja {

// Absent where Python raises ValueError. Throws ValueError where the number exceeds 64 bits. Base 0
// is the prefix's.
std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t base);
std::optional<double> parse_float(std::string_view text);

}  // namespace kvcache::detail::jinja
