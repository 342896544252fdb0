// Filters that ask a filter or test of every element: map, select and the like.
#include <algorithm>
#include <array>

#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/parameters.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// The arguments behind the first `count`.
Arguments rest_of(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

const std::string& name_of(const Value& value, std::string_view what) {
  check_value(value.as_text(), what, " must be given by name, not as ", value.type_name());
  return value.as_text()->bytes;
}

// An empty sequence, whatever is asked of its elements.
Value nothing(Interpreter& interpreter) {
  return Value::generator(
      interpreter, [](Value&) { return false; }, 0);
}

// How deep a generator is that holds these.
int depth_below(const Value& value, const Arguments& arguments) {
  return std::max(value.depth(), arguments.depth());
}

Value map_attribute(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "map", {"attribute", "default"});
  const Value& path = parameters.at(0);
  const Value otherwise = parameters.find(1) ? parameters.at(1) : Value();
  return Value::generator(
      interpreter,
      [&interpreter, next = iterate(value), path, otherwise](Value& out) {
        if (!next(out)) return false;
        out = attribute_path(interpreter, out, path, otherwise);
        return true;
      },
      depth_below(value, arguments));
}

Value map(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  if (!value.truth()) return nothing(interpreter);
  bool by_attribute = false;
  for (const auto& argument : arguments.named) by_attribute |= argument.first == "attribute";
  if (arguments.positional.empty() && by_attribute) {
    return map_attribute(interpreter, value, arguments);
  }
  check_value(!arguments.positional.empty(), "map needs the name of a filter or attribute=");
  return Value::generator(
      interpreter,
      [&interpreter, next = iterate(value), name = name_of(arguments.positional[0], "a filter"),
       rest = rest_of(arguments, 1)](Value& out) {
        if (!next(out)) return false;
        out = apply_filter(interpreter, name, out, rest);
        return true;
      },
      depth_below(value, arguments));
}

// The elements, or those members of theirs, that pass a test (truth without one), or do not.
template <bool kSelects, bool kByMember>
Value chosen(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  if (!value.truth()) return nothing(interpreter);
  const std::size_t names = kByMember ? 1 : 0;
  check_value(arguments.positional.size() >= names, "the attribute's name is missing");
  const Value path = kByMember ? arguments.positional[0] : Value();
  const bool tested = arguments.positional.size() > names;
  const std::string test = tested ? name_of(arguments.positional[names], "a test") : "";
  const Arguments rest = rest_of(arguments, names + (tested ? 1 : 0));
  return Value::generator(
      interpreter,
      [&interpreter, next = iterate(value), path, test, rest](Value& out) {
        while (next(out)) {
          interpreter.charge(1);
          const Value asked = kByMember ? attribute_path(interpreter, out, path) : out;
          const bool passes =
              test.empty() ? asked.truth() : apply_test(interpreter, test, asked, rest);
          if (passes == kSelects) return true;
        }
        return false;
      },
      depth_below(value, arguments));
}

constexpr std::array kFilters = {
    NamedFilter{"map", map},
    NamedFilter{"select", chosen<true, false>},
    NamedFilter{"reject", chosen<false, false>},
    NamedFilter{"selectattr", chosen<true, true>},
    NamedFilter{"rejectattr", chosen<false, true>},
};

}  // namespace

Filter selection_filter(std::string_view name) {
  for (const auto& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace kvcache::detail::jinja
