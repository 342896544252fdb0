#include "chat/format.h"

#include <algorithm>
#include <limits>

#include "chat/code_points.h"
#include "chat/format_spec.h"
#include "chat/operators.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// Reads the parts of a % pattern and takes the values one after the other.
class PercentFormatter {
 public:
  PercentFormatter(Interpreter& interpreter, std::string_view pattern, const Value& values)
      : interpreter_(interpreter), pattern_(pattern), values_(values) {}

  std::string run() {
    for (at_ = 0; at_ < pattern_.size();) {
      const auto percent = std::min(pattern_.find('%', at_), pattern_.size());
      out_ += pattern_.substr(at_, percent - at_);
      at_ = percent;
      if (at_ < pattern_.size()) conversion();
      interpreter_.charge(1);
      interpreter_.check_bytes(static_cast<std::int64_t>(out_.size()));
    }
    // A tuple must be used up, and so must what cannot be indexed or is a text.
    const List* list = values_.as_list();
    const bool indexable =
        list || values_.as_dict() || values_.as_range() || values_.is_undefined();
    const bool all =
        list && list->tuple ? used_ == list->items.size() : used_ > 0 || by_name_ || indexable;
    check_value(all, "not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  const Value& take() {
    const List* list = values_.as_list();
    const std::size_t count = list && list->tuple ? list->items.size() : 1;
    check_value(used_ < count, "not enough arguments for format string");
    const std::size_t index = used_++;
    return list && list->tuple ? list->items[index] : values_;
  }

  char peek() const {
    check_value(at_ < pattern_.size(), "incomplete format");
    return pattern_[at_];
  }

  const Value* named() {
    if (peek() != '(') return nullptr;
    const auto end = pattern_.find(')', at_);
    check_value(end != std::string_view::npos, "incomplete format key");
    const auto key = pattern_.substr(at_ + 1, end - at_ - 1);
    check_value(values_.as_dict(), "format requires a mapping");
    const Value* found =
        values_.as_dict()->find(interpreter_.meter(), Value::text(std::string(key)));
    check_value(found, "the format's key '", shortened(key), "' is missing");
    at_ = end + 1;
    by_name_ = true;
    return found;
  }

  std::int64_t number() {
    if (peek() == '*') {
      ++at_;
      const auto value = take().as_integer();
      check_value(value.has_value(), "* wants int");
      return *value;
    }
    std::int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = std::min<std::int64_t>(value * 10 + (peek() - '0'), kMostWidth);
    }
    return value;
  }

  void conversion() {
    ++at_;
    const Value* value = named();
    FormatSpec spec;
    spec.align = '>';
    for (; std::string_view("-+ #0").find(peek()) != std::string_view::npos; ++at_) {
      if (peek() == '-') spec.align = '<';
      if (peek() == '+' || (peek() == ' ' && spec.sign != '+')) spec.sign = peek();
      if (peek() == '#') spec.alternate = true;
      if (peek() == '0') spec.zero = true;
    }
    spec.width = number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -std::max(spec.width, -kMostWidth);
    }
    if (peek() == '.') {
      ++at_;
      spec.precision = std::max<std::int64_t>(number(), 0);
    }
    while (std::string_view("hlL").find(peek()) != std::string_view::npos) ++at_;
    const char type = peek();
    ++at_;
    if (type == '%') {
      out_ += '%';
      return;
    }
    if (spec.align == '<') spec.zero = false;
    out_ += convert(type, value ? *value : take(), spec);
  }

  std::string convert(char type, const Value& value, FormatSpec spec) {
    if (type == 's' || type == 'r' || type == 'a') {
      check_value(type != 'a', "%a is not supported; use %r");
      spec.zero = false;
      const auto text = type == 's' ? to_text(interpreter_, value) : represent(interpreter_, value);
      return format_text(interpreter_, text, spec);
    }
    check_defined(value);
    if (type == 'c' && value.as_text()) {
      check_value(value.as_text()->length == 1, "%c requires int or char");
      spec.zero = false;
      return format_text(interpreter_, value.as_text()->bytes, spec);
    }
    check_value(value.as_number().has_value(), "%", type, " format: a number is required, not ",
                value.type_name());
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    if (std::string_view("eEfFgG").find(type) != std::string_view::npos) {
      return format_float(interpreter_, *value.as_number(), spec);
    }
    check_value(std::string_view("dxXoc").find(spec.type) != std::string_view::npos,
                "unsupported format character '", type, "'");
    const bool truncates = spec.type == 'd' && !value.as_integer();
    check_value(truncates || value.as_integer(), "%", type, " format: an integer is required");
    const std::int64_t integer = truncates ? truncated(*value.as_number()) : *value.as_integer();
    return format_integer(interpreter_, integer, spec);
  }

  static constexpr std::int64_t kMostWidth = std::int64_t{1} << 40;

  Interpreter& interpreter_;
  std::string_view pattern_;
  const Value& values_;
  std::size_t at_ = 0;
  std::size_t used_ = 0;
  bool by_name_ = false;
  std::string out_;
};

}  // namespace

Value percent_format(Interpreter& interpreter, const Text& pattern, const Value& values) {
  return Value::text(PercentFormatter(interpreter, pattern.bytes, values).run(), pattern.markup);
}

std::string pad(Interpreter& interpreter, const Text& text, const Padding& padding) {
  if (padding.width <= text.length) return text.bytes;
  const std::int64_t missing = padding.width - text.length;
  const auto size = static_cast<std::int64_t>(text.bytes.size());
  std::int64_t bytes = 0;
  const bool overflow =
      __builtin_mul_overflow(missing, static_cast<std::int64_t>(padding.fill.size()), &bytes) ||
      __builtin_add_overflow(bytes, size, &bytes);
  interpreter.check_bytes(overflow ? std::numeric_limits<std::int64_t>::max() : bytes);
  std::int64_t left = padding.place == Place::kLeft ? 0 : missing;
  if (padding.place == Place::kMiddle) left = missing / 2;
  if (padding.place == Place::kCenter) left = missing / 2 + (missing & padding.width & 1);
  std::string out;
  for (std::int64_t i = 0; i < left; ++i) out += padding.fill;
  out += text.bytes;
  for (std::int64_t i = left; i < missing; ++i) out += padding.fill;
  return out;
}

std::string checked_replace(Interpreter& interpreter, std::string_view text, std::string_view from,
                            const Replacement& replacement) {
  std::int64_t times = count_occurrences(text, from);
  if (replacement.limit >= 0) times = std::min(times, replacement.limit);
  std::int64_t added = 0;
  const bool overflow =
      __builtin_mul_overflow(times, static_cast<std::int64_t>(replacement.to.size()), &added) ||
      __builtin_add_overflow(added, static_cast<std::int64_t>(text.size()), &added);
  interpreter.check_bytes(overflow ? std::numeric_limits<std::int64_t>::max() : added);
  return replace(text, from, replacement.to, replacement.limit);
}

}  // namespace kvcache::detail::jinja
