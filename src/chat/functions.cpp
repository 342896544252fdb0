#include "chat/functions.h"

#include "chat/code_points.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

Filter find_filter(std::string_view name) {
  for (const auto find : {text_filter, sequence_filter, selection_filter, value_filter}) {
    if (const Filter filter = find(name)) return filter;
  }
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& value,
                   const Arguments& arguments) {
  const Filter filter = find_filter(name);
  check_value(filter, "no filter is named '", name, "'");
  interpreter.charge(value.as_text() ? value.cost() : 0);
  interpreter.charge(arguments);
  Value result = filter(interpreter, value, arguments);
  interpreter.charge(result.cost());
  return result;
}

Value attribute_path(Interpreter& interpreter, const Value& element, const Value& path,
                     const Value& otherwise) {
  const auto step = [&](const Value& value, const Value& key) {
    interpreter.charge(1 + key.cost());
    Value found = item(interpreter, value, key);
    return found.is_undefined() && !otherwise.is_none() ? otherwise : found;
  };
  const Text* text = path.as_text();
  if (!text) return path.is_none() ? element : step(element, path);
  Value value = element;
  split(text->bytes, ".", -1, false, [&](std::string_view part) {
    const bool number = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string_view::npos;
    value = step(value, number ? Value::integer(std::stoll(std::string(part)))
                               : Value::text(std::string(part)));
  });
  return value;
}

Value without_case(Interpreter& interpreter, const Value& value) {
  const Text* text = value.as_text();
  if (!text) return value;
  interpreter.charge(value.bytes() / kCasedBytesPerStep);
  return Value::text(to_lower(text->bytes));
}

}  // namespace kvcache::detail::jinja
