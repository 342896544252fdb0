#include "chat/names.h"

#include <algorithm>

namespace kvcache::detail::jinja {

// The number of entries where there is none of that name.
std::size_t NameTable::place_of(std::string_view name) const {
  if (entries_.size() > kFew) {
    const auto found = places_.find(name);
    return found == places_.end() ? entries_.size() : found->second;
  }
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  return static_cast<std::size_t>(found - entries_.begin());
}

const Value* NameTable::find(std::string_view name) const {
  const auto place = place_of(name);
  return place == entries_.size() ? nullptr : &entries_[place].second;
}

void NameTable::put(std::string_view name, Value value) {
  const auto place = place_of(name);
  if (place < entries_.size()) {
    entries_[place].second = std::move(value);
    return;
  }
  entries_.emplace_back(name, std::move(value));
  if (entries_.size() == kFew + 1) {
    for (std::size_t i = 0; i < entries_.size(); ++i) places_.emplace(entries_[i].first, i);
  } else if (entries_.size() > kFew) {
    places_.emplace(name, place);
  }
}

}  // namespace kvcache::detail::jinja
