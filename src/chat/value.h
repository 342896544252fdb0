// The values that a chat template computes with: Python's, as far as templates can see them. All
// but namespaces are immutable, and none can hold itself, so shared ownership suffices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache::detail::jinja {

class Value;
class Interpreter;
class Meter;
struct Loop;
struct Namespace;

// Yields the next element into its argument; false at the end. What Python calls an iterator.
using Next = std::function<bool(Value&)>;

// The result of a name or member that is not there. Printing it gives nothing; using it is an error
// with this message.
struct Undefined {
  std::shared_ptr<const std::string> message;
};

struct Text {
  std::string bytes;        // UTF-8
  std::int64_t length = 0;  // code points
  bool markup = false;      // marked by `safe`: what is added to it is escaped

  bool ascii() const { return length == static_cast<std::int64_t>(bytes.size()); }
};

struct List;
struct Dict;

struct Range {
  std::int64_t start = 0;
  std::int64_t step = 1;
  std::int64_t length = 0;
  std::int64_t stop = 0;  // as it was given
};

// What dict.items(), keys() and values() return.
struct DictView {
  enum class Part { kItems, kKeys, kValues };
  std::shared_ptr<const Dict> dict;
  Part part = Part::kItems;
};

// An iterator as a value: it is true, has no length, and ends for good.
struct Generator {
  // As Next. Throws ValueError where it is asked while it runs.
  bool draw(Value& element);

  Interpreter& interpreter;
  Next next;
  int depth = 1;  // of what it holds, and one more
  bool running = false;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The largest Value::depth() among them.
  int depth() const;
};

class Callable {
 public:
  virtual ~Callable() = default;
  virtual Value call(Interpreter& interpreter, const Arguments& arguments) const = 0;
  virtual std::string name() const = 0;
  // As Value::depth(), of what it is bound to.
  virtual int depth() const { return 0; }
};

class Value {
 public:
  struct None {};
  using Data = std::variant<Undefined, None, bool, std::int64_t, double,
                            std::shared_ptr<const Text>, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, std::shared_ptr<const Range>,
                            std::shared_ptr<const DictView>, std::shared_ptr<Generator>, Namespace*,
                            std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() : data_(None{}) {}
  explicit Value(Data data) : data_(std::move(data)) {}

  static Value undefined(std::string message);
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(std::int64_t value) { return Value(Data(value)); }
  static Value real(double value) { return Value(Data(value)); }
  static Value text(std::string bytes, bool markup = false);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  // Keys must differ.
  static Value dict(std::vector<std::pair<Value, Value>> entries);
  static Value view(std::shared_ptr<const Dict> dict, DictView::Part part);
  // `depth_below`: the largest depth() among what `next` holds.
  static Value generator(Interpreter& interpreter, Next next, int depth_below);
  static Value callable(std::shared_ptr<const Callable> callable);

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  // The text, list or dict; null if the value is none.
  const Text* as_text() const { return pointee<Text>(); }
  const List* as_list() const { return pointee<List>(); }
  const Dict* as_dict() const { return pointee<Dict>(); }
  const Range* as_range() const { return pointee<Range>(); }
  const DictView* as_view() const { return pointee<DictView>(); }
  // Integers and, as in Python, booleans.
  std::optional<std::int64_t> as_integer() const;
  // Integers, booleans and floats.
  std::optional<double> as_number() const;

  // Python's truth; what is undefined is false.
  bool truth() const;
  // Number of elements or characters; absent where len() is an error.
  std::optional<std::int64_t> length() const;
  // "str", "int", "NoneType", ... as Python's messages have it.
  std::string_view type_name() const;
  // How deep containers, iterators and bound functions nest; 0 for what holds nothing. Bounded, as
  // destroying, printing and comparing recurse.
  int depth() const;
  // Bytes that the whole value stands for, shared parts counted as often as they occur.
  std::int64_t bytes() const;
  // Elements or 64ths of a text's bytes: what touching it once costs.
  std::int64_t cost() const;

 private:
  template <typename T>
  const T* pointee() const {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&data_);
    return pointer ? pointer->get() : nullptr;
  }

  Data data_;
};

// A Python list or tuple.
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  std::int64_t bytes = 0;
};

// A Python dict: entries in the order in which they came.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;
  std::int64_t bytes = 0;

  // The value of that key; null if there is none.
  const Value* find(std::string_view key) const;
  const Value* find(Meter& meter, const Value& key) const;
};

// What follows looks at as much of values as it has to, and counts that.

// Python's ==.
bool equal(Meter& meter, const Value& left, const Value& right);
// Python's <. Throws ValueError where Python refuses to order the two; `sign` is the operator for
// its message.
bool less(Meter& meter, const Value& left, const Value& right, std::string_view sign = "<");
// What can be a dict's key.
bool hashable(Meter& meter, const Value& value);
// Throws ValueError with Python's message about what is not hashable.
void check_hashable(Meter& meter, const Value& value);
// Puts a key into entries as Python's dict does: the first key stays, the last value counts.
void put(Meter& meter, std::vector<std::pair<Value, Value>>& entries, Value key, Value value);

// The elements. Throws ValueError where the value is not iterable.
Next iterate(const Value& value);
bool iterable(const Value& value);
// The part of a dict's entry that a view shows.
Value view_element(const std::pair<Value, Value>& entry, DictView::Part part);
Value range_element(const Range& range, std::int64_t index);

// Throws ValueError with the message of an undefined value, if it is one.
void check_defined(const Value& value);
// A name for a message, its middle left out if it is long.
std::string shortened(std::string_view name);
// How messages call a value: 'dict object', 'None'.
std::string described(const Value& value);

}  // namespace kvcache::detail::jinja
