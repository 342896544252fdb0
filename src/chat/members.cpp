// Members and items of values, and their methods but for those of texts.
#include <algorithm>
#include <array>

#include "chat/code_points.h"
#include "chat/interpreter.h"
#include "chat/loop.h"
#include "chat/methods.h"
#include "chat/operators.h"
#include "chat/parameters.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

class BoundMethod final : public Callable {
 public:
  BoundMethod(Value self, std::string_view name, Method function)
      : self_(std::move(self)), name_(name), function_(function) {}

  Value call(Interpreter& interpreter, const Arguments& arguments) const override {
    check_value(function_, "the method ", self_.type_name(), ".", name_,
                "() is not supported in chat templates");
    interpreter.charge(self_.as_text() ? self_.cost() : 0);
    return function_(interpreter, self_, arguments);
  }
  std::string name() const override { return name_; }
  int depth() const override { return self_.depth() + 1; }

 private:
  Value self_;
  std::string name_;
  Method function_;
};

Value count_in_list(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "count", {""}, 1);
  std::int64_t count = 0;
  const Next next = iterate(self);
  for (Value item; next(item);) {
    count += compare(interpreter, "==", item, parameters.at(0)) ? 1 : 0;
  }
  return Value::integer(count);
}

Value index_in_list(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "index", {""}, 1);
  const Next next = iterate(self);
  std::int64_t place = 0;
  for (Value item; next(item); ++place) {
    if (compare(interpreter, "==", item, parameters.at(0))) return Value::integer(place);
  }
  throw ValueError("index(): the value is not in the list");
}

// Nothing changes a value, so it is its own copy.
Value copy_of(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "copy", {});
  return self;
}

Value get_of_dict(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "get", {"", ""}, 1);
  Meter& meter = interpreter.meter();
  check_hashable(meter, parameters.at(0));
  if (const Value* found = self.as_dict()->find(meter, parameters.at(0))) return *found;
  return parameters.find(1) ? parameters.at(1) : Value();
}

template <DictView::Part kPart>
Value view_of_dict(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "a dict's view", {});
  return Value::view(*self.get<std::shared_ptr<const Dict>>(), kPart);
}

struct NamedMethod {
  std::string_view name;
  Method method;
};

constexpr std::array kListMethods = {NamedMethod{"count", count_in_list},
                                     NamedMethod{"index", index_in_list},
                                     NamedMethod{"copy", copy_of}};
constexpr std::array kDictMethods = {
    NamedMethod{"get", get_of_dict}, NamedMethod{"items", view_of_dict<DictView::Part::kItems>},
    NamedMethod{"keys", view_of_dict<DictView::Part::kKeys>},
    NamedMethod{"values", view_of_dict<DictView::Part::kValues>}, NamedMethod{"copy", copy_of}};

constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};
// What Python has besides.
constexpr std::array<std::string_view, 9> kOtherTextMethods = {
    "casefold",     "encode",      "expandtabs", "format_map", "isascii",
    "isidentifier", "isprintable", "maketrans",  "translate"};

template <typename Names>
bool includes(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value unsafe(const Value& object, std::string_view name) {
  return Value::undefined(c10::str("access to attribute '", shortened(name), "' of '",
                                   object.type_name(), "' object is unsafe"));
}

template <typename Methods>
Method find_method(const Methods& methods, std::string_view name) {
  for (const auto& entry : methods) {
    if (entry.name == name) return entry.method;
  }
  return nullptr;
}

// The attribute that Python's object has; absent if it has none.
std::optional<Value> attribute(const Value& object, const std::string& name) {
  if (name.starts_with("__")) return unsafe(object, name);
  if (const auto* space = object.get<Namespace*>()) {
    const Value* found = (*space)->members.find(name);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (const auto* loop = object.get<std::shared_ptr<Loop>>()) {
    if (name == "cycle" || name == "changed") return loop_function(*loop, name);
    return (*loop)->member(name);
  }
  return method(object, name);
}

Value missing(const Value& object, std::string_view name) {
  return Value::undefined(c10::str(described(object), " has no attribute '", shortened(name), "'"));
}

Value missing(const Value& object, const Value& key) {
  if (const Text* name = key.as_text()) return missing(object, std::string_view(name->bytes));
  const auto number = key.as_integer();
  return Value::undefined(c10::str(described(object), " has no element ",
                                   number ? std::to_string(*number) : described(key)));
}

// The element of a sequence; absent if it has none there or is none.
std::optional<Value> element(const Value& object, std::int64_t index) {
  const auto length = object.length();
  if (!length || object.as_view() || object.as_dict()) return std::nullopt;
  if (index < 0) index += *length;
  if (index < 0 || index >= *length) return std::nullopt;
  if (const Text* text = object.as_text()) {
    const auto begin =
        text->ascii() ? static_cast<std::size_t>(index) : offset_of(text->bytes, index);
    const auto end = next_boundary(text->bytes, begin);
    return Value::text(text->bytes.substr(begin, end - begin), text->markup);
  }
  if (const List* list = object.as_list()) return list->items[static_cast<std::size_t>(index)];
  if (const Range* range = object.as_range()) return range_element(*range, index);
  return std::nullopt;
}

std::optional<std::int64_t> bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  check_defined(value);
  const auto integer = value.as_integer();
  check_value(integer.has_value(), "slice indices must be integers or None");
  return integer;
}

// The positions that [start:stop:step] takes of a sequence.
struct Positions {
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
};

Positions slice_positions(const std::vector<Value>& bounds, std::int64_t length) {
  const std::int64_t step = bound(bounds[2]).value_or(1);
  check_value(step != 0, "slice step cannot be zero");
  const std::int64_t lowest = step < 0 ? -1 : 0;
  const std::int64_t highest = step < 0 ? length - 1 : length;
  const auto clamp = [&](const Value& value, std::int64_t absent) {
    const auto given = bound(value);
    if (!given) return absent;
    const std::int64_t index = *given < 0 ? std::max(*given, -length - 1) + length : *given;
    return std::clamp(index, lowest, std::max(lowest, highest));
  };
  const std::int64_t start = clamp(bounds[0], step < 0 ? highest : lowest);
  const std::int64_t stop = clamp(bounds[1], step < 0 ? lowest : highest);
  const std::int64_t distance = step < 0 ? start - stop : stop - start;
  if (distance <= 0) return {};
  // The smallest integer has no opposite.
  const std::int64_t stride = step < 0 ? -std::max(step, -length - 1) : step;
  return {start, step, (distance - 1) / stride + 1};
}

// The offset of the character `steps` behind that at `offset`, or before it.
std::size_t moved(const Text& text, std::size_t offset, std::int64_t steps) {
  if (text.ascii()) return offset + static_cast<std::size_t>(steps);
  for (; steps > 0; --steps) offset = next_boundary(text.bytes, offset);
  for (; steps < 0; ++steps) previous_code_point(text.bytes, offset);
  return offset;
}

Value slice_text(const Text& text, const Positions& positions) {
  if (positions.count == 0) return Value::text("", text.markup);
  std::size_t at = moved(text, 0, positions.first);
  std::string bytes;
  if (positions.step == 1) {
    bytes = text.bytes.substr(at, moved(text, at, positions.count) - at);
  } else {
    for (std::int64_t i = 0; i < positions.count; ++i) {
      if (i > 0) at = moved(text, at, positions.step);
      bytes.append(text.bytes, at, next_boundary(text.bytes, at) - at);
    }
  }
  return Value::text(std::move(bytes), text.markup);
}

// Counts a search for a name or key.
void charge_lookup(Interpreter& interpreter, const Value& container) {
  if (const Dict* dict = container.as_dict()) {
    interpreter.meter().charge_elements(dict->entries.size());
  } else if (const Text* text = container.as_text(); text && !text->ascii()) {
    // Its characters differ in size.
    interpreter.charge(container.cost() / 8);
  }
}

}  // namespace

std::optional<Value> method(const Value& object, std::string_view name) {
  const auto bind = [&](Method function) {
    return Value::callable(std::make_shared<BoundMethod>(object, name, function));
  };
  Method found = nullptr;
  if (object.as_text()) {
    found = text_method(name);
    if (!found && includes(kOtherTextMethods, name)) return bind(nullptr);
  } else if (const List* list = object.as_list()) {
    if (!list->tuple && includes(kListChanges, name)) return unsafe(object, name);
    if (!list->tuple || name != "copy") found = find_method(kListMethods, name);
  } else if (object.as_range() && name != "copy") {
    found = find_method(kListMethods, name);
  } else if (object.as_dict()) {
    if (includes(kDictChanges, name)) return unsafe(object, name);
    found = find_method(kDictMethods, name);
    if (name == "fromkeys") return bind(nullptr);
  }
  if (!found) return std::nullopt;
  return bind(found);
}

Value member(Interpreter& interpreter, const Value& object, const std::string& name) {
  check_defined(object);
  charge_lookup(interpreter, object);
  const Dict* dict = object.as_dict();
  if (dict && name.starts_with("__")) {
    if (const Value* found = dict->find(std::string_view(name))) return *found;
  }
  if (auto found = attribute(object, name)) return *found;
  if (dict) {
    if (const Value* found = dict->find(std::string_view(name))) return *found;
  }
  return missing(object, name);
}

Value item(Interpreter& interpreter, const Value& object, const Value& index) {
  check_defined(object);
  charge_lookup(interpreter, object);
  if (const Dict* dict = object.as_dict()) {
    Meter& meter = interpreter.meter();
    const Value* found = hashable(meter, index) ? dict->find(meter, index) : nullptr;
    if (found) return *found;
  } else if (const auto number = index.as_integer()) {
    if (auto found = element(object, *number)) return *found;
  }
  if (const Text* name = index.as_text()) {
    if (auto found = attribute(object, name->bytes)) return *found;
  }
  return missing(object, index);
}

Value slice(Interpreter& interpreter, const Value& object, const std::vector<Value>& bounds) {
  check_defined(object);
  const Text* text = object.as_text();
  const List* list = object.as_list();
  check_value(text || list || object.as_range(), "'", object.type_name(),
              "' object cannot be sliced");
  const auto length = *object.length();
  interpreter.charge(text ? object.cost() : 0);
  const Positions positions = slice_positions(bounds, length);
  if (text) return slice_text(*text, positions);
  interpreter.charge(positions.count);
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(positions.count));
  for (std::int64_t i = 0; i < positions.count; ++i) {
    items.push_back(*element(object, positions.first + i * positions.step));
  }
  return list && list->tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace kvcache::detail::jinja
