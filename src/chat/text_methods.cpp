// Python's str methods.
#include <algorithm>
#include <array>

#include "chat/code_points.h"
#include "chat/format.h"
#include "chat/interpreter.h"
#include "chat/methods.h"
#include "chat/operators.h"
#include "chat/parameters.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

using Bytes = std::string_view;

const Text& self_text(const Value& self) { return *self.as_text(); }

// A text with the mark of the one that it was made of.
Value like(const Value& self, std::string bytes) {
  return Value::text(std::move(bytes), self_text(self).markup);
}

// Collects the parts of a text.
PartTaker into(Collector& collector, const Value& self) {
  return [&](Bytes part) { collector.add(like(self, std::string(part))); };
}

void charge_characters(Interpreter& interpreter, const Value& self) {
  interpreter.charge(self.bytes() / kCasedBytesPerStep);
}

template <std::string (*kMap)(Bytes)>
Value mapped(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "a method of str", {});
  charge_characters(interpreter, self);
  return like(self, kMap(self_text(self).bytes));
}

template <bool (*kTest)(Bytes)>
Value tested(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "a method of str", {});
  charge_characters(interpreter, self);
  return Value::boolean(kTest(self_text(self).bytes));
}

template <bool (*kTest)(CodePoint)>
bool every(Bytes text) {
  return all_of(text, kTest);
}

template <Side kSide>
Value stripped(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "strip", {""});
  const Bytes text = self_text(self).bytes;
  return like(self, std::string(parameters.has(0) ? strip(text, kSide, parameters.text(0).bytes)
                                                  : strip(text, kSide)));
}

template <bool kFromRight>
Value splitted(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "split", {"sep", "maxsplit"});
  const Bytes text = self_text(self).bytes;
  const auto limit = parameters.integer_or(1, -1);
  Collector collector(interpreter);
  if (parameters.has(0)) {
    const Bytes separator = parameters.text(0).bytes;
    check_value(!separator.empty(), "split(): the separator is empty");
    split(text, separator, limit, kFromRight, into(collector, self));
  } else {
    split_at_space(text, limit, kFromRight, into(collector, self));
  }
  auto parts = collector.take();
  if (kFromRight) std::reverse(parts.begin(), parts.end());
  return Value::list(std::move(parts));
}

Value splitlines(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "splitlines", {"keepends"});
  Collector collector(interpreter);
  split_lines(self_text(self).bytes, parameters.truth_or(0, false), into(collector, self));
  return Value::list(collector.take());
}

template <bool kFromRight>
Value partition(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "partition", {""}, 1);
  const Bytes text = self_text(self).bytes;
  const Bytes separator = parameters.text(0).bytes;
  check_value(!separator.empty(), "partition(): the separator is empty");
  const auto at = kFromRight ? find_last(text, separator) : find_first(text, separator);
  const auto three = [&](Bytes before, Bytes between, Bytes behind) {
    return Value::tuple({like(self, std::string(before)), like(self, std::string(between)),
                         like(self, std::string(behind))});
  };
  if (at == Bytes::npos) return kFromRight ? three("", "", text) : three(text, "", "");
  return three(text.substr(0, at), separator, text.substr(at + separator.size()));
}

Value replaced(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "replace", {"", "", "count"}, 2);
  const auto limit = parameters.integer_or(2, -1);
  const Text& text = self_text(self);
  const Text& to = parameters.text(1);
  const std::string written =
      text.markup && !to.markup ? escape_html(interpreter, to.bytes) : to.bytes;
  return like(self, checked_replace(interpreter, text.bytes, parameters.text(0).bytes,
                                    {.to = written, .limit = limit}));
}

Value joined(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "join", {""}, 1);
  const Next next = iterate(parameters.at(0));
  std::string out;
  std::size_t index = 0;
  for (Value item; next(item); ++index) {
    const Text* text = item.as_text();
    check_value(text, "join(): item ", index, " is no str but ", item.type_name());
    if (index > 0) out += self_text(self).bytes;
    out += self_text(self).markup && !text->markup ? escape_html(interpreter, text->bytes)
                                                   : text->bytes;
    interpreter.charge(1);
    interpreter.check_bytes(static_cast<std::int64_t>(out.size()));
  }
  return like(self, std::move(out));
}

// The bytes of characters [start, end) that a search is limited to, and where they begin.
struct Window {
  Bytes text;
  std::int64_t begin = 0;
  bool valid = true;
};

Window window(const Value& self, const Parameters& parameters) {
  const Text& text = self_text(self);
  const auto place = [&](std::size_t index, std::int64_t fallback) {
    const auto value = parameters.count_or(index, fallback);
    return std::max<std::int64_t>(value < 0 ? value + text.length : value, 0);
  };
  const auto begin = place(1, 0);
  const auto end = std::min(place(2, text.length), text.length);
  if (begin > end) return {{}, begin, false};
  const auto first = offset_of(text.bytes, begin);
  const auto last = first + offset_of(Bytes(text.bytes).substr(first), end - begin);
  return {Bytes(text.bytes).substr(first, last - first), begin, true};
}

template <bool kFromRight>
std::int64_t position(const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "find", {"", "", ""}, 1);
  const auto [text, begin, valid] = window(self, parameters);
  const Bytes part = parameters.text(0).bytes;
  const auto at = kFromRight ? find_last(text, part) : find_first(text, part);
  if (!valid || at == Bytes::npos) return -1;
  return begin + count_code_points(text.substr(0, at));
}

template <bool kFromRight>
Value found(Interpreter&, const Value& self, const Arguments& arguments) {
  return Value::integer(position<kFromRight>(self, arguments));
}

template <bool kFromRight>
Value index(Interpreter&, const Value& self, const Arguments& arguments) {
  const auto at = position<kFromRight>(self, arguments);
  check_value(at >= 0, "index(): substring not found");
  return Value::integer(at);
}

Value counted(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "count", {"", "", ""}, 1);
  const auto [text, begin, valid] = window(self, parameters);
  return Value::integer(valid ? count_occurrences(text, parameters.text(0).bytes) : 0);
}

template <bool kAtEnd>
Value affixed(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, kAtEnd ? "endswith" : "startswith", {"", "", ""}, 1);
  const auto range = window(self, parameters);
  const auto fits = [&](const Text& affix) {
    return range.valid &&
           (kAtEnd ? range.text.ends_with(affix.bytes) : range.text.starts_with(affix.bytes));
  };
  const List* several = parameters.at(0).as_list();
  if (!several || !several->tuple) return Value::boolean(fits(parameters.text(0)));
  for (const Value& affix : several->items) {
    interpreter.charge(1 + (affix.as_text() ? std::min(affix.cost(), self.cost()) : 0));
    check_value(affix.as_text(), "startswith() and endswith() need a str or a tuple of str");
    if (fits(*affix.as_text())) return Value::boolean(true);
  }
  return Value::boolean(false);
}

template <bool kAtEnd>
Value removed(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "removeprefix", {""}, 1);
  Bytes text = self_text(self).bytes;
  const Bytes affix = parameters.text(0).bytes;
  if (kAtEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kAtEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return like(self, std::string(text));
}

template <Place kPlace>
Value padded(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "a padding method", {"", ""}, 1);
  const std::string fill = parameters.find(1) ? parameters.text(1).bytes : " ";
  check_value(count_code_points(fill) == 1, "the fill must be one character");
  return like(self, pad(interpreter, self_text(self),
                        {.fill = fill, .width = parameters.integer(0), .place = kPlace}));
}

Value zero_filled(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "zfill", {""}, 1);
  const Text& text = self_text(self);
  const bool sign = text.bytes.starts_with('-') || text.bytes.starts_with('+');
  const auto rest = Value::text(text.bytes.substr(sign ? 1 : 0));
  const auto width = std::max<std::int64_t>(parameters.integer(0), 1) - (sign ? 1 : 0);
  return like(self, text.bytes.substr(0, sign ? 1 : 0) +
                        pad(interpreter, *rest.as_text(),
                            {.fill = "0", .width = width, .place = Place::kRight}));
}

Value formatted(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return like(self, brace_format(interpreter, self_text(self).bytes, arguments));
}

struct NamedMethod {
  Bytes name;
  Method method;
};

constexpr std::array kMethods = {
    NamedMethod{"capitalize", mapped<capitalize>},
    NamedMethod{"center", padded<Place::kCenter>},
    NamedMethod{"count", counted},
    NamedMethod{"endswith", affixed<true>},
    NamedMethod{"find", found<false>},
    NamedMethod{"format", formatted},
    NamedMethod{"index", index<false>},
    NamedMethod{"isalnum", tested<every<is_alphanumeric>>},
    NamedMethod{"isalpha", tested<every<is_alpha>>},
    NamedMethod{"isdecimal", tested<every<is_decimal>>},
    NamedMethod{"isdigit", tested<every<is_digit>>},
    NamedMethod{"islower", tested<is_lower>},
    NamedMethod{"isnumeric", tested<every<is_number>>},
    NamedMethod{"isspace", tested<every<is_space>>},
    NamedMethod{"istitle", tested<is_title>},
    NamedMethod{"isupper", tested<is_upper>},
    NamedMethod{"join", joined},
    NamedMethod{"ljust", padded<Place::kLeft>},
    NamedMethod{"lower", mapped<to_lower>},
    NamedMethod{"lstrip", stripped<Side::kLeft>},
    NamedMethod{"partition", partition<false>},
    NamedMethod{"removeprefix", removed<false>},
    NamedMethod{"removesuffix", removed<true>},
    NamedMethod{"replace", replaced},
    NamedMethod{"rfind", found<true>},
    NamedMethod{"rindex", index<true>},
    NamedMethod{"rjust", padded<Place::kRight>},
    NamedMethod{"rpartition", partition<true>},
    NamedMethod{"rsplit", splitted<true>},
    NamedMethod{"rstrip", stripped<Side::kRight>},
    NamedMethod{"split", splitted<false>},
    NamedMethod{"splitlines", splitlines},
    NamedMethod{"startswith", affixed<false>},
    NamedMethod{"strip", stripped<Side::kBoth>},
    NamedMethod{"swapcase", mapped<swap_case>},
    NamedMethod{"title", mapped<to_title>},
    NamedMethod{"upper", mapped<to_upper>},
    NamedMethod{"zfill", zero_filled},
};

}  // namespace

Method text_method(std::string_view name) {
  const auto found_method = std::find_if(kMethods.begin(), kMethods.end(),
                                         [&](const auto& entry) { return entry.name == name; });
  return found_method == kMethods.end() ? nullptr : found_method->method;
}

}  // namespace kvcache::detail::jinja
