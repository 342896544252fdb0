// Values as text: Python's str() and repr(), and json.dumps.
#pragma once

#include <string>
#include <string_view>

#include "chat/value.h"

namespace kvcache::detail::jinja {

// str(); nothing for what is undefined. Throws ValueError where the text gets too long.
std::string to_text(Interpreter& interpreter, const Value& value);
// repr().
std::string represent(Interpreter& interpreter, const Value& value);
// The float's shortest text that reads as the same float.
std::string float_text(double value);

struct JsonFormat {
  bool ensure_ascii = false;
  bool pretty = false;  // each element in a line of its own, after `indent` for each level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// json.dumps(). Throws ValueError for what JSON cannot hold.
std::string to_json(Interpreter& interpreter, const Value& value, const JsonFormat& format);

}  // namespace kvcache::detail::jinja
