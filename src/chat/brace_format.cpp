// str.format().
#include <algorithm>
#include <charconv>

#include "chat/format.h"
#include "chat/format_spec.h"
#include "chat/operators.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Arguments& arguments)
      : interpreter_(interpreter), arguments_(arguments) {}

  // Fields may stand in the format of a field, two levels deep as in Python.
  std::string run(std::string_view pattern, int levels) {
    check_value(levels > 0, "max string recursion exceeded");
    std::string out;
    for (std::size_t at = 0; at < pattern.size();) {
      const char c = pattern[at++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (at < pattern.size() && pattern[at] == c) {
        out += c;
        ++at;
      } else {
        check_value(c == '{', "single '}' encountered in format string");
        const auto end = end_of_field(pattern, at);
        out += field(pattern.substr(at, end - at), levels);
        at = end + 1;
      }
      interpreter_.charge(1);
      interpreter_.check_bytes(static_cast<std::int64_t>(out.size()));
    }
    return out;
  }

 private:
  static std::size_t end_of_field(std::string_view pattern, std::size_t begin) {
    int open = 1;
    for (std::size_t at = begin; at < pattern.size(); ++at) {
      open += pattern[at] == '{' ? 1 : pattern[at] == '}' ? -1 : 0;
      if (open == 0) return at;
    }
    throw ValueError("expected '}' before end of string");
  }

  std::string field(std::string_view text, int levels) {
    const auto name_end = std::min(text.find_first_of("!:"), text.size());
    const Value value = lookup(text.substr(0, name_end));
    text.remove_prefix(name_end);
    char conversion = '\0';
    if (text.starts_with('!')) {
      check_value(text.size() > 1 && (text.size() == 2 || text[2] == ':'),
                  "expected ':' after conversion specifier");
      conversion = text[1];
      text.remove_prefix(2);
    }
    const std::string spec = text.empty() ? "" : run(text.substr(1), levels - 1);
    if (!conversion) return format_value(interpreter_, value, spec);
    check_value(conversion == 's' || conversion == 'r', "unknown conversion specifier ",
                conversion);
    std::string shown =
        conversion == 's' ? to_text(interpreter_, value) : represent(interpreter_, value);
    return format_value(interpreter_, Value::text(std::move(shown)), spec);
  }

  // 0.name[key]
  Value lookup(std::string_view path) {
    const auto end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      const bool bracket = path.front() == '[';
      path.remove_prefix(1);
      const auto stop = std::min(path.find_first_of(bracket ? "]" : ".["), path.size());
      const auto part = path.substr(0, stop);
      check_value(!part.empty() && (!bracket || stop < path.size()),
                  "empty attribute in format string");
      const auto number = as_number(part);
      value = bracket ? item(interpreter_, value,
                             number ? Value::integer(*number) : Value::text(std::string(part)))
                      : member(interpreter_, value, std::string(part));
      path.remove_prefix(stop + (bracket ? 1 : 0));
    }
    return value;
  }

  Value argument(std::string_view name) {
    auto number = as_number(name);
    if (name.empty()) {
      check_value(automatic_ >= 0, "cannot switch from manual field specification to automatic");
      number = automatic_++;
    } else if (number) {
      check_value(automatic_ <= 0, "cannot switch from automatic field numbering to manual");
      automatic_ = -1;
    }
    if (number) {
      check_value(*number < static_cast<std::int64_t>(arguments_.positional.size()),
                  "format(): replacement index ", *number, " out of range");
      return arguments_.positional[static_cast<std::size_t>(*number)];
    }
    interpreter_.meter().charge_elements(arguments_.named.size());
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    throw ValueError(c10::str("format(): no argument is named '", shortened(name), "'"));
  }

  static std::optional<std::int64_t> as_number(std::string_view text) {
    std::int64_t number = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = !text.empty() && text[0] != '-' && result.ec == std::errc{} &&
                       result.ptr == text.data() + text.size();
    return whole ? std::optional(number) : std::nullopt;
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  // The number of the next field without one; -1: fields are numbered.
  std::int64_t automatic_ = 0;
};

}  // namespace

std::string brace_format(Interpreter& interpreter, std::string_view pattern,
                         const Arguments& arguments) {
  return BraceFormatter(interpreter, arguments).run(pattern, 2);
}

}  // namespace kvcache::detail::jinja
