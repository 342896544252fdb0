// The filters, tests and global functions that templates may call.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace kvcache::detail::jinja {

using Filter = Value (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

// null if there is none of that name.
Filter text_filter(std::string_view name);
Filter sequence_filter(std::string_view name);
Filter selection_filter(std::string_view name);
Filter value_filter(std::string_view name);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// Throw ValueError where there is none of that name.
Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& value,
                   const Arguments& arguments);
bool apply_test(Interpreter& interpreter, std::string_view name, const Value& value,
                const Arguments& arguments);

// range, namespace, dict, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> global_functions();

// The member of an element that filters name: "a.b.0". What is not there is `otherwise` unless that
// is None, also on the way.
Value attribute_path(Interpreter& interpreter, const Value& element, const Value& path,
                     const Value& otherwise = {});
// A text in lower case for comparing without case; other values as they are.
Value without_case(Interpreter& interpreter, const Value& value);

}  // namespace kvcache::detail::jinja
