// The string literals of templates, with Python's escapes.
#pragma once

#include <string>
#include <string_view>

namespace kvcache::detail::jinja {

struct StringLiteral {
  std::string value;
  std::size_t length = 0;  // bytes in the template, quotes included
};

// Reads the literal at the start of `text`, which begins with its quote. Throws ValueError with the
// line where it is not closed or an escape is wrong.
StringLiteral read_string_literal(std::string_view text, int line);

}  // namespace kvcache::detail::jinja
