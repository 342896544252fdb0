#include "chat/value.h"

#include <algorithm>
#include <limits>

#include "chat/code_points.h"
#include "chat/loop.h"
#include "chat/meter.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

constexpr std::int64_t kElementBytes = sizeof(Value);
constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max() / 4;

std::int64_t add_bytes(std::int64_t left, std::int64_t right) {
  return std::min(left + right, kMostBytes);
}

Value make_list(std::vector<Value> items, bool tuple) {
  auto list = std::make_shared<List>();
  list->tuple = tuple;
  for (const auto& item : items) {
    list->depth = std::max(list->depth, item.depth() + 1);
    list->bytes = add_bytes(list->bytes, item.bytes() + kElementBytes);
  }
  list->items = std::move(items);
  return Value(Value::Data(std::shared_ptr<const List>(std::move(list))));
}

// Identity first, as Python compares elements: a NaN is found in its list.
bool same(Meter& meter, const Value& left, const Value& right) {
  const auto* text = left.as_text();
  if (text && text == right.as_text()) return true;
  const auto* list = left.as_list();
  if (list && list == right.as_list()) return true;
  const auto* dict = left.as_dict();
  if (dict && dict == right.as_dict()) return true;
  return equal(meter, left, right);
}

bool equal_texts(Meter& meter, std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  meter.charge_bytes(left.size());
  return left == right;
}

bool equal_lists(Meter& meter, const List& left, const List& right) {
  if (left.tuple != right.tuple || left.items.size() != right.items.size()) return false;
  meter.charge_elements(left.items.size());
  return std::equal(left.items.begin(), left.items.end(), right.items.begin(),
                    [&](const Value& a, const Value& b) { return same(meter, a, b); });
}

bool equal_dicts(Meter& meter, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
    const Value* other = right.find(meter, entry.first);
    return other && same(meter, entry.second, *other);
  });
}

// Where a key stands; the number of entries if it does not.
template <typename Entries>
std::size_t place_of(Meter& meter, const Entries& entries, const Value& key) {
  meter.charge_elements(entries.size());
  const auto* text = key.as_text();
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    const auto* other = entry.first.as_text();
    if (text && other) return equal_texts(meter, text->bytes, other->bytes);
    return !text && !other && same(meter, entry.first, key);
  });
  return static_cast<std::size_t>(found - entries.begin());
}

bool equal_ranges(const Range& left, const Range& right) {
  if (left.length != right.length) return false;
  if (left.length == 0) return true;
  return left.start == right.start && (left.length == 1 || left.step == right.step);
}

std::int64_t part_bytes(const Value& value) {
  const auto* view = value.as_view();
  return view ? view->dict->bytes : kElementBytes;
}

template <typename Pointer>
bool same_object(const Value& left, const Value& right) {
  const auto* a = left.get<Pointer>();
  const auto* b = right.get<Pointer>();
  return a && b && *a == *b;
}

}  // namespace

Value Value::undefined(std::string message) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::text(std::string bytes, bool markup) {
  auto text = std::make_shared<Text>();
  text->length = count_code_points(bytes);
  text->bytes = std::move(bytes);
  text->markup = markup;
  return Value(Data(std::shared_ptr<const Text>(std::move(text))));
}

Value Value::list(std::vector<Value> items) { return make_list(std::move(items), false); }

Value Value::tuple(std::vector<Value> items) { return make_list(std::move(items), true); }

Value Value::dict(std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : entries) {
    dict->depth = std::max({dict->depth, key.depth() + 1, value.depth() + 1});
    dict->bytes = add_bytes(dict->bytes, key.bytes() + value.bytes() + 2 * kElementBytes);
  }
  dict->entries = std::move(entries);
  return Value(Data(std::shared_ptr<const Dict>(std::move(dict))));
}

Value Value::view(std::shared_ptr<const Dict> dict, DictView::Part part) {
  auto view = std::make_shared<DictView>();
  view->dict = std::move(dict);
  view->part = part;
  return Value(Data(std::shared_ptr<const DictView>(std::move(view))));
}

Value Value::generator(Interpreter& interpreter, Next next, int depth_below) {
  return Value(
      Data(std::make_shared<Generator>(Generator{interpreter, std::move(next), depth_below + 1})));
}

int Arguments::depth() const {
  int deepest = 0;
  for (const auto& value : positional) deepest = std::max(deepest, value.depth());
  for (const auto& [name, value] : named) deepest = std::max(deepest, value.depth());
  return deepest;
}

Value Value::callable(std::shared_ptr<const Callable> callable) {
  return Value(Data(std::move(callable)));
}

std::optional<std::int64_t> Value::as_integer() const {
  if (const auto* integer = get<std::int64_t>()) return *integer;
  if (const auto* boolean = get<bool>()) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::as_number() const {
  if (const auto* real = get<double>()) return *real;
  if (const auto integer = as_integer()) return static_cast<double>(*integer);
  return std::nullopt;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto number = as_number()) return *number != 0.0;
  const auto count = length();
  return !count || *count != 0;
}

std::optional<std::int64_t> Value::length() const {
  if (is_undefined()) return 0;
  if (const auto* text = as_text()) return text->length;
  if (const auto* list = as_list()) return static_cast<std::int64_t>(list->items.size());
  if (const auto* dict = as_dict()) return static_cast<std::int64_t>(dict->entries.size());
  if (const auto* range = as_range()) return range->length;
  if (const auto* view = as_view()) return static_cast<std::int64_t>(view->dict->entries.size());
  if (const auto* loop = get<std::shared_ptr<Loop>>()) return (*loop)->length();
  return std::nullopt;
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {
      "Undefined", "NoneType", "bool", "int",       "float",     "str",      "list",
      "dict",      "range",    "view", "generator", "Namespace", "function", "LoopContext"};
  if (const auto* text = as_text()) return text->markup ? "Markup" : "str";
  if (const auto* list = as_list()) return list->tuple ? "tuple" : "list";
  if (const auto* view = as_view()) {
    if (view->part == DictView::Part::kItems) return "dict_items";
    return view->part == DictView::Part::kKeys ? "dict_keys" : "dict_values";
  }
  return kNames[data_.index()];
}

int Value::depth() const {
  if (const auto* list = as_list()) return list->depth;
  if (const auto* dict = as_dict()) return dict->depth;
  if (const auto* view = as_view()) return view->dict->depth + 1;
  if (const auto* generator = get<std::shared_ptr<Generator>>()) return (*generator)->depth;
  if (const auto* loop = get<std::shared_ptr<Loop>>()) return (*loop)->depth();
  if (const auto* callable = get<std::shared_ptr<const Callable>>()) return (*callable)->depth();
  return 0;
}

std::int64_t Value::bytes() const {
  if (const auto* text = as_text()) return static_cast<std::int64_t>(text->bytes.size());
  if (const auto* list = as_list()) return list->bytes;
  if (const auto* dict = as_dict()) return dict->bytes;
  return part_bytes(*this);
}

std::int64_t Value::cost() const {
  if (const auto* text = as_text()) return static_cast<std::int64_t>(text->bytes.size() / 64);
  if (const auto* list = as_list()) return static_cast<std::int64_t>(list->items.size());
  if (const auto* dict = as_dict()) return static_cast<std::int64_t>(dict->entries.size());
  return 0;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    const Text* text = name.as_text();
    if (text && text->bytes == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(Meter& meter, const Value& key) const {
  const auto place = place_of(meter, entries, key);
  return place == entries.size() ? nullptr : &entries[place].second;
}

bool equal(Meter& meter, const Value& left, const Value& right) {
  if (left.is_undefined() || left.is_none()) {
    return left.is_none() ? right.is_none() : right.is_undefined();
  }
  const auto a = left.as_integer();
  const auto b = right.as_integer();
  if (a && b) return *a == *b;
  const auto x = left.as_number();
  const auto y = right.as_number();
  if (x && y) return *x == *y;
  if (left.as_text() && right.as_text()) {
    return equal_texts(meter, left.as_text()->bytes, right.as_text()->bytes);
  }
  if (left.as_list() && right.as_list()) {
    return equal_lists(meter, *left.as_list(), *right.as_list());
  }
  if (left.as_dict() && right.as_dict()) {
    return equal_dicts(meter, *left.as_dict(), *right.as_dict());
  }
  if (left.as_range() && right.as_range()) {
    return equal_ranges(*left.as_range(), *right.as_range());
  }
  return same_object<std::shared_ptr<const DictView>>(left, right) ||
         same_object<std::shared_ptr<Generator>>(left, right) ||
         same_object<Namespace*>(left, right) ||
         same_object<std::shared_ptr<const Callable>>(left, right) ||
         same_object<std::shared_ptr<Loop>>(left, right);
}

bool less(Meter& meter, const Value& left, const Value& right, std::string_view sign) {
  check_defined(left);
  check_defined(right);
  const auto a = left.as_integer();
  const auto b = right.as_integer();
  if (a && b) return *a < *b;
  const auto x = left.as_number();
  const auto y = right.as_number();
  if (x && y) return *x < *y;
  // The order of UTF-8 bytes is that of code points.
  if (left.as_text() && right.as_text()) {
    meter.charge(std::min(left.cost(), right.cost()));
    return left.as_text()->bytes < right.as_text()->bytes;
  }
  const List* first = left.as_list();
  const List* second = right.as_list();
  // a > b is asked as b < a.
  const bool swapped = sign.starts_with('>');
  check_value(first && second && first->tuple == second->tuple, "'", sign,
              "' is not supported between '", (swapped ? right : left).type_name(), "' and '",
              (swapped ? left : right).type_name(), "'");
  const auto common = std::min(first->items.size(), second->items.size());
  meter.charge_elements(common);
  for (std::size_t i = 0; i < common; ++i) {
    if (!same(meter, first->items[i], second->items[i])) {
      return less(meter, first->items[i], second->items[i], sign);
    }
  }
  return first->items.size() < second->items.size();
}

bool hashable(Meter& meter, const Value& value) {
  if (const auto* list = value.as_list()) {
    if (!list->tuple) return false;
    meter.charge_elements(list->items.size());
    return std::all_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return hashable(meter, item); });
  }
  const auto* view = value.as_view();
  return !value.as_dict() && (!view || view->part == DictView::Part::kValues);
}

void check_hashable(Meter& meter, const Value& value) {
  check_value(hashable(meter, value), "unhashable type: '", value.type_name(), "'");
}

void put(Meter& meter, std::vector<std::pair<Value, Value>>& entries, Value key, Value value) {
  const auto place = place_of(meter, entries, key);
  if (place < entries.size()) {
    entries[place].second = std::move(value);
  } else {
    entries.emplace_back(std::move(key), std::move(value));
  }
}

Value view_element(const std::pair<Value, Value>& entry, DictView::Part part) {
  if (part == DictView::Part::kKeys) return entry.first;
  if (part == DictView::Part::kValues) return entry.second;
  return Value::tuple({entry.first, entry.second});
}

Value range_element(const Range& range, std::int64_t index) {
  // A long step times the index may exceed 64 bits on the way.
  const auto offset = static_cast<std::uint64_t>(index) * static_cast<std::uint64_t>(range.step);
  return Value::integer(
      static_cast<std::int64_t>(static_cast<std::uint64_t>(range.start) + offset));
}

bool iterable(const Value& value) {
  return value.is_undefined() || value.length() || value.get<std::shared_ptr<Generator>>();
}

Next iterate(const Value& value) {
  if (const auto* generator = value.get<std::shared_ptr<Generator>>()) {
    return [held = *generator](Value& out) { return held->draw(out); };
  }
  if (const auto* text = value.get<std::shared_ptr<const Text>>()) {
    return [held = *text, at = std::size_t{0}](Value& out) mutable {
      if (at == held->bytes.size()) return false;
      const std::size_t end = next_boundary(held->bytes, at);
      out = Value::text(held->bytes.substr(at, end - at));
      at = end;
      return true;
    };
  }
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
    return [held = *loop](Value& out) { return held->advance(out); };
  }
  check_value(iterable(value), "'", value.type_name(), "' object is not iterable");
  return [held = value, index = std::int64_t{0}](Value& out) mutable {
    if (index >= *held.length()) return false;
    const auto at = static_cast<std::size_t>(index);
    if (const List* list = held.as_list()) {
      out = list->items[at];
    } else if (const Dict* dict = held.as_dict()) {
      out = dict->entries[at].first;
    } else if (const DictView* view = held.as_view()) {
      out = view_element(view->dict->entries[at], view->part);
    } else {
      out = range_element(*held.as_range(), index);
    }
    ++index;
    return true;
  };
}

void check_defined(const Value& value) {
  if (const auto* undefined = value.get<Undefined>()) throw ValueError(*undefined->message);
}

std::string shortened(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  if (name.size() <= kLongest) return std::string(name);
  const auto character_begins = [&](std::size_t at) {
    while ((static_cast<unsigned char>(name[at]) & 0xC0) == 0x80) --at;
    return at;
  };
  return c10::str(name.substr(0, character_begins(kLongest / 2)), "[...]",
                  name.substr(character_begins(name.size() - kLongest / 2)));
}

std::string described(const Value& value) {
  if (value.is_none()) return "None";
  return c10::str("'", value.type_name(), " object'");
}

}  // namespace kvcache::detail::jinja
