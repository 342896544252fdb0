// Runs a template's tree: scopes, output, and the limits of the sandbox.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/statements.h"
#include "kvcache/chat/chat_template.h"

namespace kvcache::detail::jinja {

// Names and their values. Inner scopes see the outer ones; assigning makes a name in the inner.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  void assign(std::string_view name, Value value);
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
  void charge(std::int64_t steps);
  // Throws ValueError if a value of that many bytes is too large; counts making it.
  void check_bytes(std::int64_t bytes);
  void write(std::string_view text);

  Value lookup(std::string_view name) const;
  void assign(std::string_view name, Value value) { scope_->assign(name, std::move(value)); }
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
  // A new scope inside the current one.
  std::shared_ptr<Scope> inner_scope() const { return std::make_shared<Scope>(scope_); }

  Arguments evaluate(const CallArguments& arguments);
  Value call(const Value& function, const Arguments& arguments);

  // Namespaces can hold each other, so they live as long as the interpreter.
  Value make_namespace(std::vector<std::pair<std::string, Value>> members);
  void forget_at_end(const std::shared_ptr<Loop>& loop) { loops_.push_back(loop); }

  Value captured;
  const std::optional<std::chrono::local_seconds> now;

 private:
  class Level;

  const ChatTemplateLimits limits_;
  std::int64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 1;
  std::string output_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::weak_ptr<Loop>> loops_;
};

}  // namespace kvcache::detail::jinja
