// Filters that make text.
#include <algorithm>
#include <array>

#include "chat/code_points.h"
#include "chat/format.h"
#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/parameters.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// The value as text; what is marked as markup stays so.
Value soft_text(Interpreter& interpreter, const Value& value) {
  return value.as_text() ? value : Value::text(to_text(interpreter, value));
}

template <std::string (*kMap)(std::string_view)>
Value mapped(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "a filter of text", {});
  const Value text = soft_text(interpreter, value);
  interpreter.charge(text.bytes() / kCasedBytesPerStep);
  return Value::text(kMap(text.as_text()->bytes), text.as_text()->markup);
}

Value trim(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "trim", {"chars"});
  const Value text = soft_text(interpreter, value);
  const std::string_view bytes = text.as_text()->bytes;
  const auto kept = parameters.has(0) ? strip(bytes, Side::kBoth, parameters.text(0).bytes)
                                      : strip(bytes, Side::kBoth);
  return Value::text(std::string(kept), text.as_text()->markup);
}

Value replace_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "replace", {"old", "new", "count"}, 2);
  const std::string text = to_text(interpreter, value);
  const std::string from = to_text(interpreter, parameters.at(0));
  const std::string to = to_text(interpreter, parameters.at(1));
  return Value::text(
      checked_replace(interpreter, text, from, {.to = to, .limit = parameters.count_or(2, -1)}));
}

Value join(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "join", {"d", "attribute"});
  const std::string separator = parameters.find(0) ? to_text(interpreter, parameters.at(0)) : "";
  const Next next = iterate(value);
  std::string out;
  bool first = true;
  for (Value item; next(item); first = false) {
    if (parameters.has(1)) item = attribute_path(interpreter, item, parameters.at(1));
    if (!first) out += separator;
    out += to_text(interpreter, item);
    interpreter.charge(1);
    const auto size = static_cast<std::int64_t>(out.size());
    if (size > (std::int64_t{1} << 20)) interpreter.check_bytes(size);
  }
  return Value::text(std::move(out));
}

Value indent(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "indent", {"width", "first", "blank"});
  check_defined(value);
  check_value(value.as_text(), "indent() needs a str, not ", value.type_name());
  std::string prefix(4, ' ');
  if (parameters.find(0) && parameters.at(0).as_text()) {
    prefix = parameters.text(0).bytes;
  } else if (parameters.find(0)) {
    const auto width = std::max<std::int64_t>(parameters.integer(0), 0);
    interpreter.check_bytes(width);
    prefix.assign(static_cast<std::size_t>(width), ' ');
  }
  const bool blank = parameters.truth_or(2, false);
  const std::string text = value.as_text()->bytes + "\n";
  std::int64_t lines = 0;
  split_lines(text, false, [&](std::string_view) { ++lines; });
  interpreter.charge(lines);
  const auto added = static_cast<std::int64_t>(prefix.size()) * lines;
  interpreter.check_bytes(added + value.bytes());
  std::string out = parameters.truth_or(1, false) ? prefix : "";
  bool first = true;
  split_lines(text, false, [&](std::string_view line) {
    if (!first) out += '\n';
    if (!first && (blank || !line.empty())) out += prefix;
    out += line;
    first = false;
  });
  return Value::text(std::move(out), value.as_text()->markup);
}

Value center(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "center", {"width"});
  const Value text = soft_text(interpreter, value);
  return Value::text(pad(interpreter, *text.as_text(),
                         {.width = parameters.integer_or(0, 80), .place = Place::kCenter}),
                     text.as_text()->markup);
}

Value format_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  check_value(arguments.positional.empty() || arguments.named.empty(),
              "format: give arguments by position or by name, not both");
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, argument] : arguments.named) {
    entries.emplace_back(Value::text(name), argument);
  }
  const Value values =
      entries.empty() ? Value::tuple(arguments.positional) : Value::dict(std::move(entries));
  const Value text = soft_text(interpreter, value);
  return percent_format(interpreter, *text.as_text(), values);
}

Value truncate(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const auto size = value.length();
  check_value(size.has_value(), "object of type '", value.type_name(), "' has no len()");
  const std::string end = parameters.find(2) ? parameters.text(2).bytes : "...";
  const auto length = parameters.integer_or(0, 255);
  const auto leeway = parameters.count_or(3, 5);
  check_value(length >= count_code_points(end), "truncate(): the length ", length,
              " is below that of the end");
  check_value(leeway >= 0, "truncate(): the leeway ", leeway, " is negative");
  if (*size <= length || *size - length <= leeway) return value;
  check_value(value.as_text(), "truncate() needs a str, not ", value.type_name());
  std::string_view kept(value.as_text()->bytes);
  kept = kept.substr(0, offset_of(kept, length - count_code_points(end)));
  if (!parameters.truth_or(1, false)) kept = kept.substr(0, kept.rfind(' '));
  return Value::text(std::string(kept) + end);
}

Value safe(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "safe", {});
  return Value::text(to_text(interpreter, value), true);
}

Value escape(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "escape", {});
  if (value.as_text() && value.as_text()->markup) return value;
  return Value::text(escape_html(interpreter, to_text(interpreter, value)), true);
}

Value force_escape(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "forceescape", {});
  return Value::text(escape_html(interpreter, to_text(interpreter, value)), true);
}

Value string(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "string", {});
  return soft_text(interpreter, value);
}

std::string_view separator(const Value& value, std::size_t index) {
  const List* pair = value.as_list();
  check_value(pair && pair->items.size() == 2 && pair->items[index].as_text(),
              "tojson: separators are two texts");
  return pair->items[index].as_text()->bytes;
}

Value to_json_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "tojson",
                              {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = parameters.truth_or(0, false);
  format.sort_keys = parameters.truth_or(3, false);
  if (parameters.has(1)) {
    format.pretty = true;
    format.item_separator = ",";
    if (parameters.at(1).as_text()) {
      format.indent = parameters.text(1).bytes;
    } else {
      const auto width = std::max<std::int64_t>(parameters.integer(1), 0);
      interpreter.check_bytes(width);
      format.indent.assign(static_cast<std::size_t>(width), ' ');
    }
  }
  if (parameters.has(2)) {
    format.item_separator = separator(parameters.at(2), 0);
    format.key_separator = separator(parameters.at(2), 1);
  }
  return Value::text(to_json(interpreter, value, format));
}

constexpr std::array kFilters = {
    NamedFilter{"capitalize", mapped<capitalize>},
    NamedFilter{"center", center},
    NamedFilter{"e", escape},
    NamedFilter{"escape", escape},
    NamedFilter{"forceescape", force_escape},
    NamedFilter{"format", format_filter},
    NamedFilter{"indent", indent},
    NamedFilter{"join", join},
    NamedFilter{"lower", mapped<to_lower>},
    NamedFilter{"replace", replace_filter},
    NamedFilter{"safe", safe},
    NamedFilter{"string", string},
    NamedFilter{"title", mapped<title_words>},
    NamedFilter{"tojson", to_json_filter},
    NamedFilter{"trim", trim},
    NamedFilter{"truncate", truncate},
    NamedFilter{"upper", mapped<to_upper>},
};

}  // namespace

Filter text_filter(std::string_view name) {
  const auto found = std::find_if(kFilters.begin(), kFilters.end(),
                                  [&](const auto& entry) { return entry.name == name; });
  return found == kFilters.end() ? nullptr : found->filter;
}

}  // namespace kvcache::detail::jinja
