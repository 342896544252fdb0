// Text made of a pattern and values: Python's % and str.format, padding and replacing.
#pragma once

#include <string>
#include <string_view>

#include "chat/interpreter.h"

namespace kvcache::detail::jinja {

// pattern % values. Throws ValueError where they do not fit each other.
Value percent_format(Interpreter& interpreter, const Text& pattern, const Value& values);
// pattern.format(...).
std::string brace_format(Interpreter& interpreter, std::string_view pattern,
                         const Arguments& arguments);

// Where the text stands. Where the fill cannot be halved: kCenter as str.center() does it, kMiddle
// as formats do.
enum class Place { kLeft, kCenter, kMiddle, kRight };

struct Padding {
  std::string_view fill = " ";
  std::int64_t width = 0;  // code points
  Place place = Place::kLeft;
};
std::string pad(Interpreter& interpreter, const Text& text, const Padding& padding);

struct Replacement {
  std::string_view to;
  std::int64_t limit = -1;
};
// replace() within the limits of the interpreter.
std::string checked_replace(Interpreter& interpreter, std::string_view text, std::string_view from,
                            const Replacement& replacement);

}  // namespace kvcache::detail::jinja
