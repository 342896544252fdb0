// A hash map from token to value that is searched without making a std::string.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace kvcache::detail {

struct TokenHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view token) const {
    return std::hash<std::string_view>{}(token);
  }
};

template <typename Value>
using TokenMap = std::unordered_map<std::string, Value, TokenHash, std::equal_to<>>;

}  // namespace kvcache::detail
