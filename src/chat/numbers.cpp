#include "chat/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "chat/code_points.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// Without underscores, which may stand between two figures; absent where one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  const auto is_figure = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  std::string figures;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '_') {
      figures.push_back(text[at]);
    } else if (at == 0 || at + 1 == text.size() || !is_figure(text[at - 1]) ||
               !is_figure(text[at + 1])) {
      return std::nullopt;
    }
  }
  return figures;
}

// The base that a prefix 0x, 0o or 0b announces; 10 without one.
std::int64_t prefix_base(std::string_view text) {
  if (text.size() < 2 || text[0] != '0') return 10;
  const char kind = static_cast<char>(text[1] | 0x20);
  return kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t base) {
  check_value(base == 0 || (base >= 2 && base <= 36), "int() base must be >= 2 and <= 36, or 0");
  text = strip(text, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::int64_t announced = prefix_base(text);
  if (announced != 10 && (base == 0 || base == announced)) {
    text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
    base = announced;
  }
  if (base == 0) {
    const bool zeros = text.find_first_not_of("0_") == std::string_view::npos;
    if (text.starts_with('0') && !zeros) return std::nullopt;
    base = 10;
  }
  const auto figures = without_underscores(text);
  if (!figures || figures->empty() || figures->front() == '-') return std::nullopt;
  const std::string signed_figures = (negative ? "-" : "") + *figures;
  std::int64_t value = 0;
  const char* end = signed_figures.data() + signed_figures.size();
  const auto result = std::from_chars(signed_figures.data(), end, value, static_cast<int>(base));
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return std::nullopt;
  check_value(result.ec == std::errc{}, "the number ", signed_figures, " exceeds 64 bits");
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto figures = without_underscores(text);
  if (!figures || figures->empty()) return std::nullopt;
  const std::string lower = to_lower(*figures);
  double value = 0.0;
  if (lower == "inf" || lower == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (lower == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    // Python takes "1." and ".5", as from_chars does, but no words, signs or hexadecimal figures.
    if (lower.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
    if (lower.front() == '-') return std::nullopt;
    const char* end = lower.data() + lower.size();
    const auto result = std::from_chars(lower.data(), end, value);
    if (result.ptr != end || result.ec == std::errc::invalid_argument) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) {
      const auto exponent = lower.find("e-");
      value = exponent == std::string::npos ? std::numeric_limits<double>::infinity() : 0.0;
    }
  }
  return negative ? -value : value;
}

}  // namespace kvcache::detail::jinja
