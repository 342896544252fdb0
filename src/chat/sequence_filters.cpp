// Filters on sequences and mappings.
#include <algorithm>
#include <array>

#include "chat/code_points.h"
#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/parameters.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// The elements, where each will have something made for it.
std::vector<Value> elements(Interpreter& interpreter, const Value& value) {
  auto items = to_vector(interpreter, value);
  interpreter.check_elements(static_cast<std::int64_t>(items.size()));
  return items;
}

// Yields the elements of a finished list.
Value generated(Interpreter& interpreter, std::vector<Value> items) {
  const Value list = Value::list(std::move(items));
  return Value::generator(interpreter, iterate(list), list.depth());
}

Value length(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "length", {});
  const auto count = value.length();
  check_value(count.has_value(), "object of type '", value.type_name(), "' has no len()");
  return Value::integer(*count);
}

Value first(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "first", {});
  Value item;
  if (iterate(value)(item)) return item;
  return Value::undefined("No first item, sequence was empty.");
}

// What Python's reversed() takes.
bool reversible(const Value& value) {
  return value.length() && !value.get<std::shared_ptr<Loop>>();
}

Value last(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "last", {});
  check_value(reversible(value), "'", value.type_name(), "' object is not reversible");
  if (*value.length() == 0) return Value::undefined("No last item, sequence was empty.");
  if (const Text* text = value.as_text()) {
    std::size_t begin = text->bytes.size();
    previous_code_point(text->bytes, begin);
    return Value::text(text->bytes.substr(begin));
  }
  if (const List* list = value.as_list()) return list->items.back();
  if (const Dict* dict = value.as_dict()) return dict->entries.back().first;
  if (const DictView* view = value.as_view()) {
    return view_element(view->dict->entries.back(), view->part);
  }
  const Range& range = *value.as_range();
  return range_element(range, range.length - 1);
}

Value list(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "list", {});
  return Value::list(to_vector(interpreter, value));
}

Value reverse(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "reverse", {});
  if (const Text* text = value.as_text()) {
    std::string bytes;
    for (std::size_t at = text->bytes.size(); at > 0;) {
      const std::size_t end = at;
      previous_code_point(text->bytes, at);
      bytes.append(text->bytes, at, end - at);
    }
    return Value::text(std::move(bytes), text->markup);
  }
  auto items = to_vector(interpreter, value);
  std::reverse(items.begin(), items.end());
  return reversible(value) ? generated(interpreter, std::move(items))
                           : Value::list(std::move(items));
}

Value items_of(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "items", {});
  if (value.is_undefined()) return generated(interpreter, {});
  check_value(value.as_dict(), "items: can only get item pairs from a mapping, not from ",
              value.type_name());
  const auto& dict = *value.get<std::shared_ptr<const Dict>>();
  const Value view = Value::view(dict, DictView::Part::kItems);
  return Value::generator(interpreter, iterate(view), view.depth());
}

using Keyed = std::pair<Value, Value>;

// Stable, as Python sorts; downwards equal elements keep their order too.
void sort_by_key(Interpreter& interpreter, std::vector<Keyed>& keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& left, const Keyed& right) {
    interpreter.charge(1);
    Meter& meter = interpreter.meter();
    return reverse ? less(meter, right.first, left.first) : less(meter, left.first, right.first);
  });
}

std::vector<Value> values_of(std::vector<Keyed> keyed) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (auto& [key, value] : keyed) items.push_back(std::move(value));
  return items;
}

Value dictsort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  check_defined(value);
  const Dict* dict = value.as_dict();
  check_value(dict, "dictsort needs a dict, not ", value.type_name());
  const std::string by = parameters.find(1) ? parameters.text(1).bytes : "key";
  check_value(by == "key" || by == "value", "dictsort: by is \"key\" or \"value\", not \"", by,
              "\"");
  const bool case_sensitive = parameters.truth_or(0, false);
  interpreter.check_elements(static_cast<std::int64_t>(dict->entries.size()));
  std::vector<Keyed> keyed;
  for (const auto& entry : dict->entries) {
    const Value& key = by == "key" ? entry.first : entry.second;
    keyed.emplace_back(case_sensitive ? key : without_case(interpreter, key),
                       view_element(entry, DictView::Part::kItems));
  }
  sort_by_key(interpreter, keyed, parameters.truth_or(2, false));
  return Value::list(values_of(std::move(keyed)));
}

Value sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = parameters.truth_or(1, false);
  std::vector<Value> paths = {parameters.find(2) ? parameters.at(2) : Value()};
  if (const Text* text = paths[0].as_text()) {
    Collector parts(interpreter);
    split(text->bytes, ",", -1, false,
          [&](std::string_view part) { parts.add(Value::text(std::string(part))); });
    paths = parts.take();
  }
  const auto items = elements(interpreter, value);
  interpreter.check_elements(static_cast<std::int64_t>(items.size() * paths.size()));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    std::vector<Value> keys;
    for (const Value& path : paths) {
      const Value key = attribute_path(interpreter, item, path);
      keys.push_back(case_sensitive ? key : without_case(interpreter, key));
    }
    keyed.emplace_back(Value::list(std::move(keys)), item);
  }
  sort_by_key(interpreter, keyed, parameters.truth_or(0, false));
  return Value::list(values_of(std::move(keyed)));
}

Value unique(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "unique", {"case_sensitive", "attribute"});
  const bool case_sensitive = parameters.truth_or(0, false);
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : elements(interpreter, value)) {
    Value key = parameters.has(1) ? attribute_path(interpreter, item, parameters.at(1)) : item;
    if (!case_sensitive) key = without_case(interpreter, key);
    check_hashable(interpreter.meter(), key);
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return compare(interpreter, "==", other, key);
    });
    interpreter.charge(static_cast<std::int64_t>(seen.size() / 8));
    if (known) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return generated(interpreter, std::move(kept));
}

template <bool kLargest>
Value extreme(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, kLargest ? "max" : "min", {"case_sensitive", "attribute"});
  const bool case_sensitive = parameters.truth_or(0, false);
  Meter& meter = interpreter.meter();
  std::optional<Keyed> best;
  const Next next = iterate(value);
  for (Value item; next(item);) {
    interpreter.charge(1);
    Value key = parameters.has(1) ? attribute_path(interpreter, item, parameters.at(1)) : item;
    if (!case_sensitive) key = without_case(interpreter, key);
    const bool better =
        !best || (kLargest ? less(meter, best->first, key, ">") : less(meter, key, best->first));
    if (better) best = Keyed(std::move(key), item);
  }
  return best ? best->second : Value::undefined("No aggregated item, sequence was empty.");
}

Value sum(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "sum", {"attribute", "start"});
  Value total = parameters.find(1) ? parameters.at(1) : Value::integer(0);
  check_value(!total.as_text(), "sum() can't sum strings [use join instead]");
  const Next next = iterate(value);
  for (Value item; next(item);) {
    interpreter.charge(1);
    if (parameters.has(0)) item = attribute_path(interpreter, item, parameters.at(0));
    total = arithmetic(interpreter, "+", total, item);
  }
  return total;
}

Value batch(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "batch", {"linecount", "fill_with"}, 1);
  const auto size = parameters.integer(0);
  std::vector<Value> batches;
  std::vector<Value> current;
  for (const Value& item : elements(interpreter, value)) {
    if (static_cast<std::int64_t>(current.size()) == size) {
      batches.push_back(Value::list(std::exchange(current, {})));
    }
    current.push_back(item);
  }
  if (!current.empty()) {
    while (parameters.has(1) && static_cast<std::int64_t>(current.size()) < size) {
      interpreter.charge(1);
      current.push_back(parameters.at(1));
    }
    batches.push_back(Value::list(std::move(current)));
  }
  return generated(interpreter, std::move(batches));
}

Value slices(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "slice", {"slices", "fill_with"}, 1);
  const auto items = to_vector(interpreter, value);
  const auto count = parameters.integer(0);
  check_value(count != 0, "slice: the number of slices is zero");
  const auto each = static_cast<std::int64_t>(items.size()) / count;
  const auto longer = static_cast<std::int64_t>(items.size()) % count;
  std::vector<Value> result;
  auto begin = items.begin();
  for (std::int64_t i = 0; i < count; ++i) {
    interpreter.charge(4);
    const auto end = begin + each + (i < longer ? 1 : 0);
    std::vector<Value> part(begin, end);
    if (parameters.has(1) && i >= longer) part.push_back(parameters.at(1));
    result.push_back(Value::list(std::move(part)));
    begin = end;
  }
  return generated(interpreter, std::move(result));
}

Value groupby(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const Value otherwise = parameters.find(1) ? parameters.at(1) : Value();
  const auto key_of = [&](const Value& item) {
    return attribute_path(interpreter, item, parameters.at(0), otherwise);
  };
  const bool case_sensitive = parameters.truth_or(2, false);
  std::vector<Keyed> keyed;
  for (const Value& item : elements(interpreter, value)) {
    const Value key = key_of(item);
    keyed.emplace_back(case_sensitive ? key : without_case(interpreter, key), item);
  }
  sort_by_key(interpreter, keyed, false);
  std::vector<Value> groups;
  for (auto begin = keyed.begin(); begin != keyed.end();) {
    const auto end = std::find_if(begin, keyed.end(), [&](const Keyed& other) {
      return !compare(interpreter, "==", begin->first, other.first);
    });
    std::vector<Value> members;
    for (auto at = begin; at != end; ++at) members.push_back(at->second);
    const Value key = key_of(members.front());
    groups.push_back(Value::tuple({key, Value::list(std::move(members))}));
    begin = end;
  }
  return Value::list(std::move(groups));
}

constexpr std::array kFilters = {
    NamedFilter{"batch", batch},
    NamedFilter{"count", length},
    NamedFilter{"dictsort", dictsort},
    NamedFilter{"first", first},
    NamedFilter{"groupby", groupby},
    NamedFilter{"items", items_of},
    NamedFilter{"last", last},
    NamedFilter{"length", length},
    NamedFilter{"list", list},
    NamedFilter{"max", extreme<true>},
    NamedFilter{"min", extreme<false>},
    NamedFilter{"reverse", reverse},
    NamedFilter{"slice", slices},
    NamedFilter{"sort", sort},
    NamedFilter{"sum", sum},
    NamedFilter{"unique", unique},
};

}  // namespace

Filter sequence_filter(std::string_view name) {
  const auto found = std::find_if(kFilters.begin(), kFilters.end(),
                                  [&](const auto& entry) { return entry.name == name; });
  return found == kFilters.end() ? nullptr : found->filter;
}

}  // namespace kvcache::detail::jinja
