// The functions that every template has.
#include <limits>

#include "chat/functions.h"
#include "chat/interpreter.h"
#include "chat/parameters.h"
#include "chat/represent.h"
#include "chat/time_format.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

using Body = Value (*)(Interpreter& interpreter, const Arguments& arguments);

class GlobalFunction final : public Callable {
 public:
  GlobalFunction(std::string name, Body body) : name_(std::move(name)), body_(body) {}

  Value call(Interpreter& interpreter, const Arguments& arguments) const override {
    return body_(interpreter, arguments);
  }
  std::string name() const override { return name_; }

 private:
  std::string name_;
  Body body_;
};

Value range(Interpreter&, const Arguments& arguments) {
  constexpr std::uint64_t kMost = 100000;  // Jinja's sandbox
  const Parameters parameters(arguments, "range", {"", "", ""}, 1);
  const bool one = parameters.find(1) == nullptr;
  auto made = std::make_shared<Range>();
  made->start = one ? 0 : parameters.integer(0);
  made->stop = parameters.integer(one ? 0 : 1);
  made->step = parameters.integer_or(2, 1);
  check_value(made->step != 0, "range() arg 3 must not be zero");
  const bool up = made->step > 0;
  std::uint64_t distance = 0;
  if (up ? made->stop > made->start : made->stop < made->start) {
    const auto from = static_cast<std::uint64_t>(up ? made->start : made->stop);
    distance = static_cast<std::uint64_t>(up ? made->stop : made->start) - from;
  }
  const std::uint64_t step =
      up ? static_cast<std::uint64_t>(made->step) : 0 - static_cast<std::uint64_t>(made->step);
  const std::uint64_t length = distance / step + (distance % step != 0 ? 1 : 0);
  check_value(length <= kMost, "a range of ", length, " elements is larger than ", kMost);
  made->length = static_cast<std::int64_t>(length);
  return Value(Value::Data(std::shared_ptr<const Range>(std::move(made))));
}

// dict(mapping or pairs, name=value, ...)
Value dict(Interpreter& interpreter, const Arguments& arguments) {
  check_value(arguments.positional.size() <= 1, "dict() takes at most one argument by position");
  Meter& meter = interpreter.meter();
  std::vector<std::pair<Value, Value>> entries;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* held = source.as_dict()) {
      interpreter.charge(source.cost());
      entries = held->entries;
    } else {
      const Next next = iterate(source);
      for (Value pair; next(pair);) {
        const auto parts = to_vector(interpreter, pair);
        check_value(parts.size() == 2, "dict() needs pairs");
        check_hashable(meter, parts[0]);
        put(meter, entries, parts[0], parts[1]);
      }
    }
  }
  // Names differ from each other, but may be among the entries.
  const bool alone = entries.empty();
  for (const auto& [name, value] : arguments.named) {
    if (alone) {
      entries.emplace_back(Value::text(name), value);
    } else {
      put(meter, entries, Value::text(name), value);
    }
  }
  return Value::dict(std::move(entries));
}

Value make_namespace(Interpreter& interpreter, const Arguments& arguments) {
  const Value members = dict(interpreter, arguments);
  NameTable named;
  for (const auto& [key, value] : members.as_dict()->entries) {
    check_value(key.as_text(), "a namespace's members are named by text");
    const auto& name = key.as_text()->bytes;
    check_value(!name.starts_with('_'), "a namespace takes no member '", shortened(name),
                "', as it begins with an underscore");
    named.put(name, value);
  }
  return interpreter.make_namespace(std::move(named));
}

Value raise_exception(Interpreter& interpreter, const Arguments& arguments) {
  const Parameters parameters(arguments, "raise_exception", {"message"}, 1);
  throw ValueError(to_text(interpreter, parameters.at(0)));
}

Value strftime_now(Interpreter& interpreter, const Arguments& arguments) {
  const Parameters parameters(arguments, "strftime_now", {"format"}, 1);
  return Value::text(format_time(parameters.text(0).bytes, interpreter.now));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  std::vector<std::pair<std::string, Value>> functions;
  const auto add = [&](const std::string& name, Body body) {
    functions.emplace_back(name, Value::callable(std::make_shared<GlobalFunction>(name, body)));
  };
  add("range", range);
  add("dict", dict);
  add("namespace", make_namespace);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return functions;
}

}  // namespace kvcache::detail::jinja
