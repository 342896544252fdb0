// What generate() must feed when drafts are checked, worked out from the finished text alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvcache::testing {

// A text's first tokens and how many may be drafted at most -> the draft.
using Draft =
    std::function<std::vector<std::int64_t>(const std::vector<std::int64_t>&, std::int64_t)>;

// Tokens of each forward pass that makes `text` of its first `prompt` tokens: the prompt; then, of
// a text that is known up to some length, its last token and a draft, of which those that the text
// goes on with are accepted, and one token more. The last token of all is never drafted.
inline std::vector<std::int64_t> fed_with_drafts(const std::vector<std::int64_t>& text,
                                                 std::int64_t prompt, const Draft& draft) {
  const auto end = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> fed = {prompt};
  for (std::int64_t known = prompt + 1; known < end;) {
    const std::vector<std::int64_t> before(text.begin(), text.begin() + known);
    const std::int64_t most = end - known - 1;
    const std::vector<std::int64_t> guess =
        most > 0 ? draft(before, most) : std::vector<std::int64_t>();
    const auto wrong = std::mismatch(guess.begin(), guess.end(), text.begin() + known).first;
    fed.push_back(std::int64_t(guess.size()) + 1);
    known += wrong - guess.begin() + 1;
  }
  return fed;
}

// What followed the text's last `size` tokens where they came first, of the largest size up to
// `ngram` that came before; up to `longest` tokens.
inline Draft looked_up(std::int64_t longest, std::int64_t ngram) {
  return [=](const std::vector<std::int64_t>& text, std::int64_t most) {
    const auto end = static_cast<std::int64_t>(text.size());
    for (std::int64_t size = ngram; size > 0; --size) {
      for (std::int64_t first = 0; first + size < end; ++first) {
        const auto place = text.begin() + first;
        if (!std::equal(place, place + size, text.end() - size)) continue;
        const std::int64_t after = first + size;
        const std::int64_t count = std::min({longest, most, end - after});
        return std::vector<std::int64_t>(text.begin() + after, text.begin() + after + count);
      }
    }
    return std::vector<std::int64_t>();
  };
}

}  // namespace kvcache::testing
