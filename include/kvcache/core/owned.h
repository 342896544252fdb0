// What a movable object owns. Whoever uses the object after it was moved from gets an error, not a
// crash.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache::detail {

template <typename T>
class Owned {
 public:
  // `owner`: what messages call the owning object. Throws ValueError for null.
  Owned(std::unique_ptr<T> object, const char* owner) : object_(std::move(object)), owner_(owner) {
    check_value(object_ != nullptr, owner_,
                " cannot be made of nothing: it was given a null pointer");
  }

  // Both throw RuntimeError once it was moved from.
  T& operator*() const {
    check_state(object_ != nullptr, owner_,
                " was moved from; only assign to it, or let it go, and use what it moved to");
    return *object_;
  }
  T* operator->() const { return &**this; }

 private:
  std::unique_ptr<T> object_;
  const char* owner_;
};

}  // namespace kvcache::detail
