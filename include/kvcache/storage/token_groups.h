// How many tokens each group over tokens has, where packed states have such groups.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kvcache/core/errors.h"

namespace kvcache::detail {

struct TokenGroups {
  std::vector<std::int64_t> valid = {};  // tokens of each, oldest first
  std::int64_t first = 0;                // entry of the oldest in a table of groups

  std::int64_t size() const { return static_cast<std::int64_t>(valid.size()); }
  std::int64_t end() const { return first + size(); }

  // A number that other groups have, too, by chance only: 50 bits of FNV-1a over
  // their tokens.
  std::int64_t checksum() const {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const std::int64_t tokens : valid) {
      hash = (hash ^ static_cast<std::uint64_t>(tokens)) * 1099511628211ULL;
    }
    return valid.empty() ? 0 : static_cast<std::int64_t>(hash >> 14);
  }

  // As many whole groups of `unit` tokens as `tokens` are.
  void append(std::int64_t tokens, std::int64_t unit) {
    valid.insert(valid.end(), static_cast<std::size_t>(tokens / unit), unit);
  }

  // Without so many of the oldest and of the newest tokens.
  void trim(std::int64_t oldest, std::int64_t newest) noexcept {
    auto kept = valid.begin();
    for (; kept != valid.end() && oldest >= *kept; ++kept) oldest -= *kept;
    first += kept - valid.begin();
    valid.erase(valid.begin(), kept);
    if (!valid.empty()) valid.front() -= oldest;
    while (!valid.empty() && newest >= valid.back()) {
      newest -= valid.back();
      valid.pop_back();
    }
    if (!valid.empty()) valid.back() -= newest;
  }

  // Of int64 [groups], or of an undefined tensor none. Throws ValueError for another tensor.
  static TokenGroups from(const at::Tensor& tensor) {
    TokenGroups groups;
    if (!tensor.defined()) return groups;
    check_value(tensor.dim() == 1 && tensor.scalar_type() == at::kLong,
                "packed_groups must be int64 [groups], but are ", tensor.scalar_type(), " ",
                tensor.sizes());
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    const auto* data = host.const_data_ptr<std::int64_t>();
    groups.valid.assign(data, data + host.numel());
    return groups;
  }

  // Throws ValueError unless they are of 1 to `unit` tokens each, `tokens` in all; for `unit` = 1,
  // where there are no such groups, unless there are none.
  void check(std::int64_t tokens, std::int64_t unit) const {
    const bool fits = std::all_of(valid.begin(), valid.end(),
                                  [&](std::int64_t each) { return each >= 1 && each <= unit; });
    const auto sum = [&] { return std::accumulate(valid.begin(), valid.end(), std::int64_t{0}); };
    check_value(unit == 1 ? valid.empty() : fits && sum() == tokens,
                "packed_groups do not add up to ", tokens, " tokens in groups of at most ", unit);
  }
};

}  // namespace kvcache::detail
