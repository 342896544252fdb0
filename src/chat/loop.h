// What a template's loop knows of itself: `loop.index`, `loop.last` and the like.
#pragma once

#include "chat/value.h"

namespace kvcache::detail::jinja {

// Takes elements as they are asked for; only what looks ahead (last, nextitem, length) reads on.
struct Loop {
  Loop(Interpreter& interpreter, const Value& iterable);

  // Moves to the next element; false at the end.
  bool advance(Value& element);
  std::int64_t length();
  // The member of that name; absent if there is none.
  std::optional<Value> member(std::string_view name);
  int depth() const { return depth_; }
  // Drops all that it holds; then it can only be destroyed.
  void let_go();

  std::int64_t index0 = -1;
  std::optional<Value> last_changed;
  // The interpreter's: see Interpreter::keep_loop.
  std::shared_ptr<Loop> kept_before;

 private:
  bool draw(Value& element);
  bool peek();

  Interpreter& interpreter_;
  // That of the iterable and one more: how deep drawing recurses. What was drawn is not in it, as
  // loops that others hold do not end within each other.
  int depth_;
  Next next_;
  bool running_ = false;
  std::optional<std::int64_t> length_;
  std::optional<Value> after_;
  Value current_;
  Value before_;
};

// loop.cycle or loop.changed.
Value loop_function(const std::shared_ptr<Loop>& loop, std::string_view name);

}  // namespace kvcache::detail::jinja
