#include "chat/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/code_points.h"
#include "chat/format.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

[[noreturn]] void fail_overflow(std::string_view sign) {
  throw ValueError(c10::str("the result of ", sign, " exceeds 64 bits"));
}

// Towards minus infinity, as Python divides.
std::int64_t floor_divide(std::int64_t left, std::int64_t right) {
  const std::int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    check_value(base != 0, "0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow("**");
  }
  return Value::integer(result);
}

Value integer_arithmetic(std::string_view sign, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  bool overflow = false;
  if (sign == "+") {
    overflow = __builtin_add_overflow(left, right, &result);
  } else if (sign == "-") {
    overflow = __builtin_sub_overflow(left, right, &result);
  } else if (sign == "*") {
    overflow = __builtin_mul_overflow(left, right, &result);
  } else if (sign == "**") {
    return integer_power(left, right);
  } else {
    check_value(right != 0, sign == "/" ? "division by zero" : "integer modulo by zero");
    if (sign == "/") return Value::real(static_cast<double>(left) / static_cast<double>(right));
    const bool least = left == std::numeric_limits<std::int64_t>::min() && right == -1;
    overflow = least && sign == "//";
    if (!least) {
      const std::int64_t quotient = floor_divide(left, right);
      result = sign == "//" ? quotient : left - quotient * right;
    }
  }
  if (overflow) fail_overflow(sign);
  return Value::integer(result);
}

double float_modulo(double left, double right) {
  double rest = std::fmod(left, right);
  if (rest != 0.0) {
    if ((right < 0) != (rest < 0)) rest += right;
  } else {
    rest = std::copysign(0.0, right);
  }
  return rest;
}

double float_floor_divide(double left, double right) {
  const double rest = std::fmod(left, right);
  double quotient = (left - rest) / right;
  if (rest != 0.0 && (right < 0) != (rest < 0)) quotient -= 1.0;
  if (quotient == 0.0) return std::copysign(0.0, left / right);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

Value float_arithmetic(std::string_view sign, double left, double right) {
  if (sign == "+") return Value::real(left + right);
  if (sign == "-") return Value::real(left - right);
  if (sign == "*") return Value::real(left * right);
  if (sign == "**") {
    check_value(left != 0.0 || right >= 0.0, "0.0 cannot be raised to a negative power");
    check_value(left >= 0.0 || std::floor(right) == right,
                "a negative number to a broken power is complex, which is not supported");
    const double result = std::pow(left, right);
    check_value(!std::isinf(result) || std::isinf(left) || std::isinf(right),
                "the result of ** is out of range");
    return Value::real(result);
  }
  check_value(right != 0.0, sign == "/"    ? "float division by zero"
                            : sign == "//" ? "float floor division by zero"
                                           : "float modulo");
  if (sign == "/") return Value::real(left / right);
  return Value::real(sign == "//" ? float_floor_divide(left, right) : float_modulo(left, right));
}

[[noreturn]] void fail_operands(std::string_view sign, const Value& left, const Value& right) {
  if (sign == "**") sign = "** or pow()";
  throw ValueError(c10::str("unsupported operand type(s) for ", sign, ": '", left.type_name(),
                            "' and '", right.type_name(), "'"));
}

Value add_texts(Interpreter& interpreter, const Text& left, const Text& right) {
  const bool markup = left.markup || right.markup;
  const auto part = [&](const Text& text) {
    return markup && !text.markup ? escape_html(interpreter, text.bytes) : text.bytes;
  };
  interpreter.check_bytes(static_cast<std::int64_t>(left.bytes.size() + right.bytes.size()));
  return Value::text(part(left) + part(right), markup);
}

Value add_lists(Interpreter& interpreter, const List& left, const List& right) {
  interpreter.check_bytes(left.bytes + right.bytes);
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  interpreter.charge(static_cast<std::int64_t>(items.size()));
  return left.tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

// A text or list several times over; absent if the value is neither.
std::optional<Value> repeat(Interpreter& interpreter, const Value& value, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  if (!value.as_text() && !value.as_list()) return std::nullopt;
  std::int64_t size = 0;
  if (__builtin_mul_overflow(value.bytes(), times, &size)) {
    size = std::numeric_limits<std::int64_t>::max();
  }
  interpreter.check_bytes(size);
  if (const Text* text = value.as_text()) {
    std::string bytes;
    bytes.reserve(static_cast<std::size_t>(size));
    if (!text->bytes.empty()) {
      for (std::int64_t i = 0; i < times; ++i) bytes += text->bytes;
    }
    return Value::text(std::move(bytes), text->markup);
  }
  const List& list = *value.as_list();
  std::vector<Value> items;
  if (!list.items.empty()) {
    interpreter.charge(times * static_cast<std::int64_t>(list.items.size()));
    for (std::int64_t i = 0; i < times; ++i) {
      items.insert(items.end(), list.items.begin(), list.items.end());
    }
  }
  return list.tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

std::optional<Value> multiply(Interpreter& interpreter, const Value& left, const Value& right) {
  if (const auto times = right.as_integer()) return repeat(interpreter, left, *times);
  if (const auto times = left.as_integer()) return repeat(interpreter, right, *times);
  return std::nullopt;
}

}  // namespace

std::string escape_html(Interpreter& interpreter, std::string_view text) {
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::array<std::string_view, 5> kNames = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::size_t size = text.size();
  for (const char c : text) {
    const auto special = kSpecial.find(c);
    if (special != std::string_view::npos) size += kNames[special].size() - 1;
  }
  interpreter.check_bytes(static_cast<std::int64_t>(size));
  std::string out;
  out.reserve(size);
  for (const char c : text) {
    const auto special = kSpecial.find(c);
    if (special == std::string_view::npos) {
      out.push_back(c);
    } else {
      out += kNames[special];
    }
  }
  return out;
}

Value arithmetic(Interpreter& interpreter, std::string_view sign, const Value& left,
                 const Value& right) {
  if (sign == "%" && left.as_text()) {
    interpreter.charge(left.cost());
    return percent_format(interpreter, *left.as_text(), right);
  }
  check_defined(left);
  check_defined(right);
  const auto a = left.as_integer();
  const auto b = right.as_integer();
  if (a && b) return integer_arithmetic(sign, *a, *b);
  const auto x = left.as_number();
  const auto y = right.as_number();
  if (x && y) return float_arithmetic(sign, *x, *y);
  if (sign == "+") {
    if (left.as_text() && right.as_text()) {
      return add_texts(interpreter, *left.as_text(), *right.as_text());
    }
    const List* first = left.as_list();
    const List* second = right.as_list();
    if (first && second && first->tuple == second->tuple) {
      return add_lists(interpreter, *first, *second);
    }
    if (left.as_text() || first) {
      throw ValueError(c10::str("can only concatenate ", left.type_name(), " (not \"",
                                right.type_name(), "\") to ", left.type_name()));
    }
  }
  if (sign == "*") {
    if (auto product = multiply(interpreter, left, right)) return *product;
  }
  fail_operands(sign, left, right);
}

bool contains(Interpreter& interpreter, const Value& container, const Value& element) {
  if (const Text* text = container.as_text()) {
    const Text* part = element.as_text();
    check_value(part, "'in <string>' requires string as left operand, not ", element.type_name());
    interpreter.charge(container.cost() + element.cost());
    return find_first(text->bytes, part->bytes) != std::string_view::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    check_hashable(interpreter.meter(), element);
    return dict->find(interpreter.meter(), element) != nullptr;
  }
  check_value(iterable(container), "argument of type '", container.type_name(),
              "' is not iterable");
  const Next next = iterate(container);
  for (Value candidate; next(candidate);) {
    interpreter.charge(1);
    if (equal(interpreter.meter(), candidate, element)) return true;
  }
  return false;
}

bool compare(Interpreter& interpreter, std::string_view sign, const Value& left,
             const Value& right) {
  if (sign == "in") return contains(interpreter, right, left);
  if (sign == "not in") return !contains(interpreter, right, left);
  interpreter.charge(1);
  Meter& meter = interpreter.meter();
  if (sign == "==") return equal(meter, left, right);
  if (sign == "!=") return !equal(meter, left, right);
  if (sign == "<") return less(meter, left, right, sign);
  if (sign == ">") return less(meter, right, left, sign);
  // Not the negation of the other: a NaN is neither.
  if (sign == "<=") return less(meter, left, right, sign) || equal(meter, left, right);
  return less(meter, right, left, sign) || equal(meter, left, right);
}

}  // namespace kvcache::detail::jinja
