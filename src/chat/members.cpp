// Members and items of values, and their methods but for those of texts.
#include <algorithm>
#include <array>

#include "chat/code_points.h"
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
  for (const Value& item : to_vector(self)) {
    count += compare(interpreter, "==", item, parameters.at(0)) ? 1 : 0;
  }
  return Value::integer(count);
}

Value index_in_list(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "index", {""}, 1);
  const auto items = to_vector(self);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (compare(interpreter, "==", items[i], parameters.at(0))) {
      return Value::integer(static_cast<std::int64_t>(i));
    }
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
  check_hashable(parameters.at(0));
  interpreter.charge(self.cost() / 16);
  if (const Value* found = self.as_dict()->find(parameters.at(0))) return *found;
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
  return Value::undefined(
      c10::str("access to attribute '", name, "' of '", object.type_name(), "' object is unsafe"));
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
    for (const auto& [known, value] : (*space)->members) {
      if (known == name) return value;
    }
    return std::nullopt;
  }
  if (const auto* loop = object.get<std::shared_ptr<Loop>>()) {
    if (name == "cycle" || name == "changed") return loop_function(*loop, name);
    return (*loop)->member(name);
  }
  return method(object, name);
}

Value missing(const Value& object, const Value& key) {
  if (const Text* name = key.as_text()) {
    return Value::undefined(c10::str(described(object), " has no attribute '", name->bytes, "'"));
  }
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

// The positions that [start:stop:step] takes of `length`.
std::vector<std::int64_t> slice_indices(const std::vector<Value>& bounds, std::int64_t length) {
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
  std::vector<std::int64_t> indices;
  for (std::int64_t at = start; step < 0 ? at > stop : at < stop;) {
    indices.push_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return indices;
}

Value slice_text(const Text& text, const std::vector<std::int64_t>& indices) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < text.bytes.size(); at = next_boundary(text.bytes, at)) {
    offsets.push_back(at);
  }
  offsets.push_back(text.bytes.size());
  std::string bytes;
  for (const auto index : indices) {
    const auto at = static_cast<std::size_t>(index);
    bytes += text.bytes.substr(offsets[at], offsets[at + 1] - offsets[at]);
  }
  return Value::text(std::move(bytes), text.markup);
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

Value member(const Value& object, const std::string& name) {
  check_defined(object);
  const Dict* dict = object.as_dict();
  if (dict && name.starts_with("__")) {
    if (const Value* found = dict->find(std::string_view(name))) return *found;
  }
  if (auto found = attribute(object, name)) return *found;
  if (dict) {
    if (const Value* found = dict->find(std::string_view(name))) return *found;
  }
  return missing(object, Value::text(name));
}

Value item(const Value& object, const Value& index) {
  check_defined(object);
  if (const Dict* dict = object.as_dict()) {
    const Value* found = hashable(index) ? dict->find(index) : nullptr;
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
  interpreter.charge(text ? object.cost() : length / 16);
  const auto indices = slice_indices(bounds, length);
  if (text) return slice_text(*text, indices);
  std::vector<Value> items;
  for (const auto index : indices) items.push_back(*element(object, index));
  interpreter.charge(static_cast<std::int64_t>(items.size()));
  return list && list->tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace kvcache::detail::jinja
