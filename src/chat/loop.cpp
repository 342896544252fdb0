#include "chat/loop.h"

#include "chat/interpreter.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

class LoopFunction final : public Callable {
 public:
  LoopFunction(std::shared_ptr<Loop> loop, bool cycle) : loop_(std::move(loop)), cycle_(cycle) {}

  Value call(Interpreter& interpreter, const Arguments& arguments) const override {
    check_value(arguments.named.empty(), name(), "() takes no named arguments");
    return cycle_ ? cycle(arguments.positional) : changed(interpreter, arguments.positional);
  }
  std::string name() const override { return cycle_ ? "loop.cycle" : "loop.changed"; }
  int depth() const override { return loop_->depth() + 1; }

 private:
  Value cycle(const std::vector<Value>& values) const {
    check_value(!values.empty(), "no items for cycling given");
    return values[static_cast<std::size_t>(loop_->index0) % values.size()];
  }

  Value changed(Interpreter& interpreter, const std::vector<Value>& values) const {
    const Value now = Value::tuple(values);
    const auto& before = loop_->last_changed;
    if (before && equal(interpreter.meter(), *before, now)) return Value::boolean(false);
    loop_->last_changed = now;
    return Value::boolean(true);
  }

  std::shared_ptr<Loop> loop_;
  bool cycle_;
};

}  // namespace

bool Generator::draw(Value& element) {
  const Interpreter::Drawing drawing(interpreter, running);
  return next(element);
}

Loop::Loop(Interpreter& interpreter, const Value& iterable)
    : interpreter_(interpreter),
      depth_(iterable.depth() + 1),
      next_(iterate(iterable)),
      length_(iterable.length()) {}

void Loop::let_go() {
  next_ = nullptr;
  after_.reset();
  current_ = before_ = Value();
  last_changed.reset();
}

// Elements may be made by an expression that asks this loop for more.
bool Loop::draw(Value& element) {
  const Interpreter::Drawing drawing(interpreter_, running_);
  return next_(element);
}

bool Loop::peek() {
  if (after_) return true;
  Value element;
  if (!draw(element)) return false;
  after_ = std::move(element);
  return true;
}

bool Loop::advance(Value& element) {
  if (!peek()) return false;
  ++index0;
  before_ = std::move(current_);
  current_ = std::move(*after_);
  after_.reset();
  element = current_;
  return true;
}

std::int64_t Loop::length() {
  if (length_) return *length_;
  Collector rest(interpreter_);
  for (Value element; draw(element);) rest.add(element);
  const Value list = Value::list(rest.take());
  length_ = *list.length() + index0 + 1 + (after_ ? 1 : 0);
  next_ = iterate(list);
  return *length_;
}

std::optional<Value> Loop::member(std::string_view name) {
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "index0") return Value::integer(index0);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index0);
  if (name == "revindex0") return Value::integer(length() - index0 - 1);
  // Loops that call themselves would count.
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") {
    return index0 == 0 ? Value::undefined("there is no previous item") : before_;
  }
  if (name == "nextitem") return peek() ? *after_ : Value::undefined("there is no next item");
  return std::nullopt;
}

Value loop_function(const std::shared_ptr<Loop>& loop, std::string_view name) {
  return Value::callable(std::make_shared<LoopFunction>(loop, name == "cycle"));
}

}  // namespace kvcache::detail::jinja
