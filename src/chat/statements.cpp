#include "chat/statements.h"

#include "chat/interpreter.h"
#include "chat/loop.h"
#include "chat/macro.h"
#include "chat/represent.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

using ScopeGuard = Interpreter::ScopeGuard;

// The elements that pass the condition of a loop, each asked when its turn comes.
Value filtered(Interpreter& interpreter, const For::Parts& parts, const Value& iterable) {
  // Weak, as a scope may come to hold the loop.
  auto next = [&interpreter, &parts, all = iterate(iterable),
               outer = std::weak_ptr<Scope>(interpreter.scope())](Value& element) {
    const auto scope = outer.lock();
    while (scope && all(element)) {
      interpreter.charge(1);
      const ScopeGuard guard(interpreter, std::make_shared<Scope>(scope));
      interpreter.assign(parts.target, element);
      if (interpreter.evaluate(*parts.condition).truth()) return true;
    }
    return false;
  };
  return Value::generator(interpreter, std::move(next), iterable.depth());
}

Value filtered_text(Interpreter& interpreter, const ExpressionPtr& filters, std::string text) {
  interpreter.check_bytes(static_cast<std::int64_t>(text.size()));
  Value value = Value::text(std::move(text));
  if (!filters) return value;
  interpreter.captured = std::move(value);
  return interpreter.evaluate(*filters);
}

// Keeps a loop that something else holds when it ends, be it by an error.
class LoopEnd {
 public:
  LoopEnd(Interpreter& interpreter, const std::shared_ptr<Loop>& loop)
      : interpreter_(interpreter), loop_(loop) {}
  ~LoopEnd() {
    if (held()) interpreter_.keep_loop(loop_);
  }
  LoopEnd(const LoopEnd&) = delete;
  LoopEnd& operator=(const LoopEnd&) = delete;

  bool held() const { return loop_.use_count() > 1; }

 private:
  Interpreter& interpreter_;
  const std::shared_ptr<Loop>& loop_;
};

}  // namespace

Flow Data::execute(Interpreter& interpreter) const {
  interpreter.write(text);
  return Flow::kNext;
}

Flow Print::execute(Interpreter& interpreter) const {
  for (const auto& value : values) {
    interpreter.write(to_text(interpreter, interpreter.evaluate(*value)));
  }
  return Flow::kNext;
}

Flow If::execute(Interpreter& interpreter) const {
  for (const auto& branch : branches) {
    if (interpreter.evaluate(*branch.condition).truth()) return interpreter.execute(branch.body);
  }
  return interpreter.execute(otherwise);
}

Flow For::execute(Interpreter& interpreter) const {
  Value iterable = interpreter.evaluate(*parts.iterable);
  if (parts.condition) iterable = filtered(interpreter, parts, iterable);
  const auto loop = std::make_shared<Loop>(interpreter, iterable);
  const LoopEnd end(interpreter, loop);
  // As in Jinja, the else part also runs where no round came to its end.
  bool completed = false;
  for (Value element; loop->advance(element);) {
    interpreter.charge(1);
    const ScopeGuard guard(interpreter, interpreter.inner_scope());
    interpreter.assign("loop", Value(Value::Data(loop)));
    interpreter.assign(parts.target, element);
    const Flow flow = interpreter.execute(parts.body);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNext;
  }
  // It stays until the template ends.
  if (end.held()) interpreter.charge(8);
  if (completed || parts.otherwise.empty()) return Flow::kNext;
  const ScopeGuard guard(interpreter, interpreter.inner_scope());
  return interpreter.execute(parts.otherwise);
}

Flow Set::execute(Interpreter& interpreter) const {
  interpreter.assign(target, interpreter.evaluate(*value));
  return Flow::kNext;
}

Flow SetBlock::execute(Interpreter& interpreter) const {
  std::string text;
  {
    const ScopeGuard guard(interpreter, interpreter.inner_scope());
    text = interpreter.capture(body);
  }
  interpreter.assign(target, filtered_text(interpreter, filters, std::move(text)));
  return Flow::kNext;
}

Flow FilterBlock::execute(Interpreter& interpreter) const {
  const ScopeGuard guard(interpreter, interpreter.inner_scope());
  std::string text = interpreter.capture(body);
  const Value value = filtered_text(interpreter, filters, std::move(text));
  interpreter.write(to_text(interpreter, value));
  return Flow::kNext;
}

Flow With::execute(Interpreter& interpreter) const {
  const auto inner = interpreter.inner_scope();
  for (const auto& [target, expression] : values) {
    const Value value = interpreter.evaluate(*expression);
    const ScopeGuard guard(interpreter, inner);
    interpreter.assign(target, value);
  }
  const ScopeGuard guard(interpreter, inner);
  return interpreter.execute(body);
}

Flow Macro::execute(Interpreter& interpreter) const {
  interpreter.assign(definition->name, make_macro(interpreter, definition));
  return Flow::kNext;
}

Flow CallBlock::execute(Interpreter& interpreter) const {
  const Value function = interpreter.evaluate(*call->function);
  Arguments arguments = interpreter.evaluate(call->arguments);
  arguments.named.emplace_back("caller", make_macro(interpreter, caller));
  interpreter.write(to_text(interpreter, interpreter.call(function, arguments)));
  return Flow::kNext;
}

}  // namespace kvcache::detail::jinja
