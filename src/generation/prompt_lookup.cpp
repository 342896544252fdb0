#include "generation/prompt_lookup.h"

#include <algorithm>
#include <span>

namespace kvcache::detail {

// As Transformers does: the longest n-gram first, and of its places the first.
std::vector<std::int64_t> PromptLookup::propose(const TokenRows& text, std::int64_t most) {
  const at::Tensor row = text.row(0).to(at::kCPU).contiguous();
  const std::span<const std::int64_t> ids(row.const_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(row.numel()));
  const auto length = static_cast<std::int64_t>(ids.size());
  for (std::int64_t n = std::min(largest_ngram_, length - 1); n > 0; --n) {
    const auto ngram = ids.last(static_cast<std::size_t>(n));
    const auto found = std::search(ids.begin(), ids.end() - 1, ngram.begin(), ngram.end());
    if (found == ids.end() - 1) continue;
    const auto first = found + n;
    const std::int64_t count = std::min({most, longest_, ids.end() - first});
    return {first, first + count};
  }
  return {};
}

}  // namespace kvcache::detail
