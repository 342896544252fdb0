#include "chat/interpreter.h"

#include <exception>

#include "chat/functions.h"
#include "chat/lexer.h"
#include "chat/loop.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail::jinja {

namespace {

// How deep lists, dicts and iterators may nest.
constexpr int kMaxValueDepth = 200;

// What an element of a list takes up that is made for it: a text of a character, say.
constexpr std::int64_t kMadeElementBytes = 100;

}  // namespace

// One level of evaluation: counted, and the line in errors.
class Interpreter::Level {
 public:
  Level(Interpreter& interpreter, int line)
      : interpreter_(interpreter),
        outer_line_(std::exchange(interpreter.line_, line)),
        exceptions_(std::uncaught_exceptions()) {
    ++interpreter.depth_;
  }
  // An error keeps the line of the innermost node.
  ~Level() {
    --interpreter_.depth_;
    if (std::uncaught_exceptions() == exceptions_) interpreter_.line_ = outer_line_;
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  void check() const {
    interpreter_.check_depth();
    interpreter_.charge(1);
  }

 private:
  Interpreter& interpreter_;
  int outer_line_;
  int exceptions_;
};

Interpreter::Interpreter(const ChatTemplateLimits& limits,
                         std::optional<std::chrono::local_seconds> time,
                         std::vector<std::pair<std::string, Value>> variables)
    : now(time), limits_(limits), meter_(limits.steps), scope_(std::make_shared<Scope>(nullptr)) {
  for (auto& [name, value] : global_functions()) assign(name, std::move(value));
  for (auto& [name, value] : variables) assign(name, std::move(value));
  scope_ = inner_scope();
}

// Kept loops may hold each other in a ring, or in a chain of any length: first all let go of what
// they hold, then one after the other ends.
Interpreter::~Interpreter() {
  for (Loop* loop = kept_loops_.get(); loop; loop = loop->kept_before.get()) loop->let_go();
  while (kept_loops_) kept_loops_ = std::exchange(kept_loops_->kept_before, nullptr);
}

void Interpreter::keep_loop(const std::shared_ptr<Loop>& loop) noexcept {
  loop->kept_before = std::exchange(kept_loops_, loop);
}

Interpreter::Drawing::Drawing(Interpreter& interpreter, bool& running)
    : interpreter_(interpreter), running_(running) {
  check_value(!running_, "generator already executing");
  interpreter_.depth_ += kLevels;
  try {
    interpreter_.check_depth();
  } catch (...) {
    interpreter_.depth_ -= kLevels;
    throw;
  }
  running_ = true;
}

std::string Interpreter::run(const Block& block) {
  try {
    execute(block);
  } catch (const ValueError& error) {
    fail_at(line_, error.what());
  }
  return std::move(output_);
}

Value Interpreter::evaluate(const Expression& expression) {
  const Level level(*this, expression.line());
  level.check();
  Value value = expression.evaluate(*this);
  check_value(value.depth() <= kMaxValueDepth, "a value nests deeper than ", kMaxValueDepth,
              " levels");
  check_size(value.bytes());
  return value;
}

Flow Interpreter::execute(const Block& block) {
  for (const auto& statement : block) {
    const Level level(*this, statement->line());
    level.check();
    const Flow flow = statement->execute(*this);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

std::string Interpreter::capture(const Block& block) {
  std::string outer = std::exchange(output_, {});
  execute(block);
  return std::exchange(output_, std::move(outer));
}

void Interpreter::charge(const Arguments& arguments) {
  const auto charge_text = [&](const Value& value) { charge(value.as_text() ? value.cost() : 0); };
  for (const auto& value : arguments.positional) charge_text(value);
  for (const auto& [name, value] : arguments.named) charge_text(value);
}

void Interpreter::check_depth() const {
  check_value(depth_ <= limits_.depth, "the template calls itself deeper than ", limits_.depth,
              " levels (limits.depth)");
}

void Interpreter::check_size(std::int64_t bytes) const {
  check_value(bytes <= limits_.value_bytes, "a value is larger than ", limits_.value_bytes,
              " bytes (limits.value_bytes)");
}

void Interpreter::check_bytes(std::int64_t bytes) {
  check_size(bytes);
  charge(bytes / 64);
}

void Interpreter::check_elements(std::int64_t count) {
  check_size(count > limits_.value_bytes ? count : count * kMadeElementBytes);
  charge(count);
}

void Interpreter::write(std::string_view text) {
  const auto size = static_cast<std::int64_t>(output_.size() + text.size());
  check_value(size <= limits_.output_bytes, "the output is longer than ", limits_.output_bytes,
              " bytes (limits.output_bytes)");
  charge(static_cast<std::int64_t>(text.size() / 64));
  output_ += text;
}

Value Interpreter::lookup(std::string_view name) {
  std::size_t searched = 0;
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    if (const Value* value = scope->variables.find(name)) return *value;
    if (++searched % 8 == 0) charge(1);
  }
  return Value::undefined(c10::str("'", name, "' is undefined"));
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.tuple) {
    const Next next = iterate(value);
    Value item;
    for (const Target& part : target.parts) {
      check_value(next(item), "not enough values to unpack (expected ", target.parts.size(), ")");
      assign(part, item);
    }
    check_value(!next(item), "too many values to unpack (expected ", target.parts.size(), ")");
    return;
  }
  if (target.member.empty()) return assign(target.name, value);
  const Value object = lookup(target.name);
  const auto* held = object.get<Namespace*>();
  check_value(held, "cannot assign to a member of '", target.name,
              "', which is no namespace: make it by namespace()");
  check_value(!target.member.starts_with('_'), "a namespace takes no member '", target.member,
              "', as it begins with an underscore");
  (*held)->members.put(target.member, value);
}

Arguments Interpreter::evaluate(const CallArguments& arguments) {
  Arguments result;
  for (const auto& argument : arguments.positional) {
    result.positional.push_back(evaluate(*argument));
  }
  for (const auto& [name, argument] : arguments.named) {
    result.named.emplace_back(name, evaluate(*argument));
  }
  if (arguments.more_positional) {
    for (auto& value : to_vector(*this, evaluate(*arguments.more_positional))) {
      result.positional.push_back(std::move(value));
    }
  }
  if (arguments.more_named) {
    const Value mapping = evaluate(*arguments.more_named);
    check_defined(mapping);
    const Dict* dict = mapping.as_dict();
    check_value(dict, "argument after ** must be a mapping, not ", mapping.type_name());
    check_elements(static_cast<std::int64_t>(dict->entries.size()));
    const std::size_t literal = result.named.size();
    for (const auto& [key, value] : dict->entries) {
      check_value(key.as_text(), "keywords must be strings");
      const auto& name = key.as_text()->bytes;
      charge(key.cost());
      meter_.charge_elements(literal);
      for (std::size_t i = 0; i < literal; ++i) {
        check_value(result.named[i].first != name, "the argument ", shortened(name),
                    " is given twice");
      }
      result.named.emplace_back(name, value);
    }
  }
  charge(static_cast<std::int64_t>(result.positional.size() + result.named.size()));
  return result;
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  check_defined(function);
  const auto* callable = function.get<std::shared_ptr<const Callable>>();
  check_value(callable, "'", function.type_name(), "' object is not callable");
  charge(arguments);
  Value result = (*callable)->call(*this, arguments);
  charge(result.cost());
  return result;
}

Value Interpreter::make_namespace(NameTable members) {
  namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(members)}));
  return Value(Value::Data(namespaces_.back().get()));
}

void Collector::add(Value element) {
  interpreter_.charge(2);
  bytes_ += element.bytes() + kMadeElementBytes;
  interpreter_.check_size(bytes_);
  elements_.push_back(std::move(element));
}

std::vector<Value> to_vector(Interpreter& interpreter, const Value& value) {
  if (const List* list = value.as_list()) {
    interpreter.charge(static_cast<std::int64_t>(list->items.size()));
    return list->items;
  }
  Collector collector(interpreter);
  const Next next = iterate(value);
  for (Value element; next(element);) collector.add(element);
  return collector.take();
}

}  // namespace kvcache::detail::jinja
