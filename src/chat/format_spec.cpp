#include "chat/format_spec.h"

#include <fmt/format.h>

#include <cmath>

#include "chat/code_points.h"
#include "chat/format.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// The longest run of digits that is made: far above what a double has.
constexpr std::int64_t kMostPrecision = 4096;

Place place_of(char align, Place otherwise) {
  if (align == '<') return Place::kLeft;
  if (align == '^') return Place::kMiddle;
  return align == '>' ? Place::kRight : otherwise;
}

std::string with_grouping(std::string digits, char separator) {
  const auto whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (std::size_t at = whole; at > 3;) {
    at -= 3;
    digits.insert(at, 1, separator);
  }
  return digits;
}

// Pads a number, which is a sign or prefix and digits.
std::string pad_number(Interpreter& interpreter, const std::string& prefix, std::string digits,
                       const FormatSpec& spec) {
  if (spec.grouping) {
    check_value(!spec.zero, "zeros before grouped digits are not supported");
    digits = with_grouping(std::move(digits), spec.grouping);
  }
  const auto length = static_cast<std::int64_t>(prefix.size());
  if (spec.zero || spec.align == '=') {
    const std::string fill = spec.zero ? "0" : spec.fill;
    const Value text = Value::text(std::move(digits));
    return prefix + pad(interpreter, *text.as_text(),
                        {.fill = fill, .width = spec.width - length, .place = Place::kRight});
  }
  const Value text = Value::text(prefix + digits);
  const Place place = place_of(spec.align, Place::kRight);
  return pad(interpreter, *text.as_text(),
             {.fill = spec.fill, .width = spec.width, .place = place});
}

std::string sign_text(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

std::string percent_text(double value, std::int64_t precision) {
  return fmt::format("{:.{}f}%", value * 100.0, precision);
}

// Without a type Python shows at least one digit behind the point.
std::string general_text(double value, const FormatSpec& spec) {
  if (!spec.precision) return float_text(value);
  std::string text = fmt::format("{:.{}g}", value, std::max<std::int64_t>(*spec.precision, 1));
  const bool plain = text.find_first_of(".en") == std::string::npos;
  return plain ? text + ".0" : text;
}

std::string float_digits(double value, const FormatSpec& spec) {
  if (std::isnan(value) || std::isinf(value)) {
    const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
    std::string text = std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
    return spec.type == '%' ? text + "%" : text;
  }
  const auto precision = spec.precision.value_or(6);
  check_value(precision <= kMostPrecision, "a precision of ", precision, " is too large");
  switch (spec.type) {
    case 'e':
      return spec.alternate ? fmt::format("{:#.{}e}", value, precision)
                            : fmt::format("{:.{}e}", value, precision);
    case 'E':
      return fmt::format("{:.{}E}", value, precision);
    case 'f':
    case 'F':
      return spec.alternate ? fmt::format("{:#.{}f}", value, precision)
                            : fmt::format("{:.{}f}", value, precision);
    case 'g':
      return fmt::format("{:.{}g}", value, std::max<std::int64_t>(precision, 1));
    case 'G':
      return fmt::format("{:.{}G}", value, std::max<std::int64_t>(precision, 1));
    case '%':
      return percent_text(value, precision);
    default:
      return general_text(value, spec);
  }
}

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  constexpr std::string_view kAligns = "<>^=";
  const auto is_align = [&](std::size_t at) {
    return at < text.size() && kAligns.find(text[at]) != std::string_view::npos;
  };
  const std::size_t first = text.empty() ? 0 : next_boundary(text, 0);
  std::size_t at = 0;
  if (is_align(first)) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  const auto take = [&](std::string_view any) {
    const bool found = at < text.size() && any.find(text[at]) != std::string_view::npos;
    return found ? text[at++] : '\0';
  };
  const auto number = [&] {
    std::int64_t value = 0;
    for (char digit = take("0123456789"); digit; digit = take("0123456789")) {
      value = std::min<std::int64_t>(value * 10 + (digit - '0'), std::int64_t{1} << 40);
    }
    return value;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  spec.zero = take("0") != '\0' && !spec.align;
  spec.width = number();
  spec.grouping = take(",_");
  if (take(".")) spec.precision = number();
  spec.type = take("bcdeEfFgGnosxX%");
  check_value(at == text.size(), "invalid format specifier '", text, "'");
  check_value(spec.type != 'n', "the format type n is not supported");
  return spec;
}

}  // namespace

std::int64_t truncated(double value) {
  check_value(!std::isnan(value), "cannot convert float NaN to integer");
  check_value(!std::isinf(value), "cannot convert float infinity to integer");
  check_value(std::abs(value) < 9223372036854775808.0, "the integer ", value, " exceeds 64 bits");
  return static_cast<std::int64_t>(value);
}

std::string format_text(Interpreter& interpreter, std::string_view text, const FormatSpec& spec) {
  if (spec.precision && *spec.precision < count_code_points(text)) {
    text = text.substr(0, offset_of(text, *spec.precision));
  }
  const Value shown = Value::text(std::string(text));
  const Place place = place_of(spec.align, Place::kLeft);
  const bool zeros = spec.zero && spec.fill == " ";
  return pad(
      interpreter, *shown.as_text(),
      {.fill = zeros ? "0" : std::string_view(spec.fill), .width = spec.width, .place = place});
}

std::string format_integer(Interpreter& interpreter, std::int64_t value, const FormatSpec& spec) {
  const bool negative = value < 0;
  const std::uint64_t size =
      negative ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  std::string prefix = sign_text(negative, spec.sign);
  std::string digits;
  switch (spec.type) {
    case 'x':
    case 'X':
      digits = spec.type == 'x' ? fmt::format("{:x}", size) : fmt::format("{:X}", size);
      if (spec.alternate) prefix.append({'0', spec.type});
      break;
    case 'o':
      digits = fmt::format("{:o}", size);
      if (spec.alternate) prefix += "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", size);
      if (spec.alternate) prefix += "0b";
      break;
    case 'c': {
      check_value(value >= 0 && value < 0x110000 && (value < 0xD800 || value > 0xDFFF),
                  "the number ", value, " is no character");
      append_code_point(digits, static_cast<CodePoint>(value));
      return format_text(interpreter, digits, spec);
    }
    default:
      digits = std::to_string(size);
  }
  if (spec.precision && *spec.precision > static_cast<std::int64_t>(digits.size())) {
    check_value(*spec.precision <= kMostPrecision, "a precision of ", *spec.precision,
                " is too large");
    digits.insert(0, static_cast<std::size_t>(*spec.precision) - digits.size(), '0');
  }
  return pad_number(interpreter, prefix, std::move(digits), spec);
}

std::string format_float(Interpreter& interpreter, double value, const FormatSpec& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  std::string digits = float_digits(negative ? -value : value, spec);
  return pad_number(interpreter, sign_text(negative, spec.sign), std::move(digits), spec);
}

std::string format_value(Interpreter& interpreter, const Value& value, std::string_view text) {
  if (text.empty()) return to_text(interpreter, value);
  const FormatSpec spec = parse_spec(text);
  constexpr std::string_view kFloats = "eEfFgG%";
  const bool float_type = spec.type && kFloats.find(spec.type) != std::string_view::npos;
  if (value.as_text()) {
    check_value(!spec.type || spec.type == 's', "unknown format code '", spec.type,
                "' for object of type 'str'");
    check_value(spec.align != '=' && spec.sign == '-' && !spec.grouping,
                "a sign, grouping or '=' is not allowed in a str's format");
    return format_text(interpreter, value.as_text()->bytes, spec);
  }
  check_value(value.as_number().has_value(), "unsupported format string passed to ",
              value.type_name(), ".__format__");
  if (value.get<bool>() && !spec.type) {
    return format_text(interpreter, to_text(interpreter, value), spec);
  }
  if (value.as_integer() && !float_type) {
    check_value(!spec.precision && spec.type != 's', "unknown format code '", spec.type,
                "' or a precision for object of type 'int'");
    return format_integer(interpreter, *value.as_integer(), spec);
  }
  check_value(float_type || !spec.type, "unknown format code '", spec.type,
              "' for object of type 'float'");
  return format_float(interpreter, *value.as_number(), spec);
}

}  // namespace kvcache::detail::jinja
