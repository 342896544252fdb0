// The parts of a format: how wide, which sign, how many digits.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/interpreter.h"

namespace kvcache::detail::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =; \0: as the type has it
  char sign = '-';    // - + or a space
  bool alternate = false;
  bool zero = false;       // zeros between the sign and the digits
  char grouping = '\0';    // , or _ between thousands
  std::int64_t width = 0;  // code points
  std::optional<std::int64_t> precision;
  char type = '\0';
};

std::string format_text(Interpreter& interpreter, std::string_view text, const FormatSpec& spec);
std::string format_integer(Interpreter& interpreter, std::int64_t value, const FormatSpec& spec);
std::string format_float(Interpreter& interpreter, double value, const FormatSpec& spec);
// Python's int(value). Throws ValueError where it exceeds 64 bits or is no number.
std::int64_t truncated(double value);

// What str.format makes of a value and the text behind the field's colon.
std::string format_value(Interpreter& interpreter, const Value& value, std::string_view spec);

}  // namespace kvcache::detail::jinja
