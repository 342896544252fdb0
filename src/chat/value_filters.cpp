// Filters on single values.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>

#include "chat/code_points.h"
#include "chat/format_spec.h"
#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/methods.h"
#include "chat/numbers.h"
#include "chat/operators.h"
#include "chat/parameters.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

Value absolute(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "abs", {});
  check_value(value.as_number().has_value(), "bad operand type for abs(): '", value.type_name(),
              "'");
  if (const auto integer = value.as_integer()) {
    check_value(*integer != std::numeric_limits<std::int64_t>::min(),
                "the result of abs() exceeds 64 bits");
    return Value::integer(std::abs(*integer));
  }
  return Value::real(std::abs(*value.as_number()));
}

Value attribute(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "attr", {"name"}, 1);
  // Only members, no keys of dicts.
  const Value empty = value.as_dict() ? Value::dict({}) : value;
  return value.as_dict() && !method(value, parameters.text(0).bytes)
             ? member(interpreter, empty, parameters.text(0).bytes)
             : member(interpreter, value, parameters.text(0).bytes);
}

Value default_value(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "default", {"default_value", "boolean"});
  const bool absent = value.is_undefined() || (parameters.truth_or(1, false) && !value.truth());
  if (!absent) return value;
  return parameters.find(0) ? parameters.at(0) : Value::text("");
}

// int(float(value)), the default where that is none.
Value through_float(const Value& value, const Value& otherwise) {
  std::optional<double> number = value.as_number();
  if (const Text* text = value.as_text()) number = parse_float(text->bytes);
  if (!number || !std::isfinite(*number)) return otherwise;
  return Value::integer(truncated(*number));
}

Value to_integer(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "int", {"default", "base"});
  check_defined(value);
  const Value otherwise = parameters.find(0) ? parameters.at(0) : Value::integer(0);
  if (const auto integer = value.as_integer()) return Value::integer(*integer);
  if (const Text* text = value.as_text()) {
    const auto base = parameters.integer_or(1, 10);
    if (const auto integer = parse_integer(text->bytes, base)) return Value::integer(*integer);
  }
  return through_float(value, otherwise);
}

Value to_float(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "float", {"default"});
  check_defined(value);
  std::optional<double> number = value.as_number();
  if (const Text* text = value.as_text()) number = parse_float(text->bytes);
  if (number) return Value::real(*number);
  return parameters.find(0) ? parameters.at(0) : Value::real(0.0);
}

// round(): half to even, of the decimal that the float's exact value is nearest to.
double round_common(double value, std::int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -300) return std::copysign(0.0, value);
  if (precision >= 0) return *parse_float(fmt::format("{:.{}f}", value, precision));
  const double power = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / power) * power;
}

Value round_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "round", {"precision", "method"});
  check_defined(value);
  check_value(value.as_number().has_value(), "type ", value.type_name(),
              " does not define round()");
  const auto precision = parameters.integer_or(0, 0);
  const std::string way = parameters.find(1) ? parameters.text(1).bytes : "common";
  check_value(way == "common" || way == "ceil" || way == "floor",
              "round: the method is common, ceil or floor, not ", way);
  if (way == "common") {
    if (value.as_integer() && precision >= 0) return Value::integer(*value.as_integer());
    const double rounded = round_common(*value.as_number(), precision);
    return value.as_integer() ? Value::integer(truncated(rounded)) : Value::real(rounded);
  }
  const Value power = arithmetic(interpreter, "**", Value::integer(10), Value::integer(precision));
  const double scaled = *arithmetic(interpreter, "*", value, power).as_number();
  const Value whole =
      Value::integer(truncated(way == "ceil" ? std::ceil(scaled) : std::floor(scaled)));
  return arithmetic(interpreter, "/", whole, power);
}

// Percent-encoded UTF-8, as in a URL's path.
std::string url_quoted(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos ||
                       (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value urlencode(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "urlencode", {});
  if (value.as_text() || !iterable(value)) {
    return Value::text(url_quoted(to_text(interpreter, value), false));
  }
  const Value pairs = value.as_dict() ? Value::view(*value.get<std::shared_ptr<const Dict>>(),
                                                    DictView::Part::kItems)
                                      : value;
  std::string out;
  const Next next = iterate(pairs);
  for (Value pair; next(pair);) {
    const auto parts = to_vector(interpreter, pair);
    check_value(parts.size() == 2, "urlencode: expected pairs");
    if (!out.empty()) out += '&';
    out += url_quoted(to_text(interpreter, parts[0]), true) + "=" +
           url_quoted(to_text(interpreter, parts[1]), true);
    interpreter.check_size(static_cast<std::int64_t>(out.size()));
  }
  return Value::text(std::move(out));
}

Value wordcount(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "wordcount", {});
  const std::string text = to_text(interpreter, value);
  std::int64_t count = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const bool word = is_word(next_code_point(text, at));
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::integer(count);
}

constexpr std::array kFilters = {
    NamedFilter{"abs", absolute},        NamedFilter{"attr", attribute},
    NamedFilter{"d", default_value},     NamedFilter{"default", default_value},
    NamedFilter{"float", to_float},      NamedFilter{"int", to_integer},
    NamedFilter{"round", round_filter},  NamedFilter{"urlencode", urlencode},
    NamedFilter{"wordcount", wordcount},
};

}  // namespace

Filter value_filter(std::string_view name) {
  const auto found = std::find_if(kFilters.begin(), kFilters.end(),
                                  [&](const auto& entry) { return entry.name == name; });
  return found == kFilters.end() ? nullptr : found->filter;
}

}  // namespace kvcache::detail::jinja
