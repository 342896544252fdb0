// Values by name: the variables of a scope and the members of a namespace.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace kvcache::detail::jinja {

// Keeps the order in which the names came. Looking a name up takes time in the logarithm of their
// number.
class NameTable {
 public:
  using Entries = std::vector<std::pair<std::string, Value>>;

  // The value of that name; null if there is none.
  const Value* find(std::string_view name) const;
  // Adds a name, or gives it another value.
  void put(std::string_view name, Value value);
  const Entries& entries() const { return entries_; }

 private:
  static constexpr std::size_t kFew = 8;

  std::size_t place_of(std::string_view name) const;

  Entries entries_;
  // Of all names, once they are more than a few.
  std::map<std::string, std::size_t, std::less<>> places_;
};

struct Namespace {
  NameTable members;
};

}  // namespace kvcache::detail::jinja
