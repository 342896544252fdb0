// Runs a template's tree: scopes, output, and the limits of the sandbox.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/meter.h"
#include "chat/names.h"
#include "chat/statements.h"
#include "kvcache/chat/chat_template.h"

namespace kvcache::detail::jinja {

// Names and their values. Inner scopes see the outer ones; assigning makes a name in the inner.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  std::shared_ptr<Scope> parent;
  NameTable variables;
};

class Interpreter {
 public:
  // `variables` is what the template is given.
  Interpreter(const ChatTemplateLimits& limits, std::optional<std::chrono::local_seconds> now,
              std::vector<std::pair<std::string, Value>> variables);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The text that the template makes. Throws ValueError with the line.
  std::string run(const Block& block);

  Value evaluate(const Expression& expression);
  Flow execute(const Block& block);
  // The text that a block makes in the current scope. It ends without break or continue.
  std::string capture(const Block& block);

  // Counts work; throws ValueError at the limit.
  void charge(std::int64_t steps) { meter_.charge(steps); }
  // Counts reading the texts among arguments.
  void charge(const Arguments& arguments);
  Meter& meter() { return meter_; }
  // Throws ValueError if a value of that many bytes is too large.
  void check_size(std::int64_t bytes) const;
  // As above, and counts making it.
  void check_bytes(std::int64_t bytes);
  // As above, of a list of that many elements that are yet to be made.
  void check_elements(std::int64_t count);
  void write(std::string_view text);

  Value lookup(std::string_view name);
  void assign(std::string_view name, Value value) { scope_->variables.put(name, std::move(value)); }
  void assign(const Target& target, const Value& value);
  const std::shared_ptr<Scope>& scope() const { return scope_; }

  // Works in another scope until it ends.
  class ScopeGuard {
   public:
    ScopeGuard(Interpreter& interpreter, std::shared_ptr<Scope> scope)
        : interpreter_(interpreter), outer_(std::exchange(interpreter.scope_, std::move(scope))) {}
    ~ScopeGuard() { interpreter_.scope_ = std::move(outer_); }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Interpreter& interpreter_;
    std::shared_ptr<Scope> outer_;
  };
  // Runs an iterator, which may run others or evaluate expressions: some levels more until it ends.
  class Drawing {
   public:
    // `running` is the iterator's own. Throws ValueError where it runs already.
    Drawing(Interpreter& interpreter, bool& running);
    ~Drawing() {
      interpreter_.depth_ -= kLevels;
      running_ = false;
    }
    Drawing(const Drawing&) = delete;
    Drawing& operator=(const Drawing&) = delete;

   private:
    // It takes more of the stack than a level of evaluation.
    static constexpr int kLevels = 2;

    Interpreter& interpreter_;
    bool& running_;
  };
  // A new scope inside the current one.
  std::shared_ptr<Scope> inner_scope() const { return std::make_shared<Scope>(scope_); }

  Arguments evaluate(const CallArguments& arguments);
  Value call(const Value& function, const Arguments& arguments);

  // Namespaces can hold each other, so they live as long as the interpreter.
  Value make_namespace(NameTable members);
  // So can loops that something else holds when they end.
  void keep_loop(const std::shared_ptr<Loop>& loop) noexcept;

  Value captured;
  const std::optional<std::chrono::local_seconds> now;

 private:
  class Level;

  void check_depth() const;

  const ChatTemplateLimits limits_;
  Meter meter_;
  int depth_ = 0;
  int line_ = 1;
  std::string output_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  // The loop kept last; each holds the one kept before it.
  std::shared_ptr<Loop> kept_loops_;
};

// A list that is made element by element, within the limits of a value.
class Collector {
 public:
  explicit Collector(Interpreter& interpreter) : interpreter_(interpreter) {}

  void add(Value element);
  std::vector<Value> take() { return std::move(elements_); }

 private:
  Interpreter& interpreter_;
  std::vector<Value> elements_;
  std::int64_t bytes_ = 0;
};

// All elements of a value. A generator is used up. Throws ValueError where it is not iterable.
std::vector<Value> to_vector(Interpreter& interpreter, const Value& value);

}  // namespace kvcache::detail::jinja
