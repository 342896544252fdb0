// The precompiled normalization rules of a SentencePiece model: a trie (a double array, as
// Darts-clone writes it) from characters to places in a list of texts. libsentencepiece trusts it;
// this checks.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kvcache/core/errors.h"
#include "text/sentencepiece_file.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

// As many texts that begin alike libsentencepiece has room for (kMaxTrieResultsSize).
constexpr int kMaxCommonPrefixes = 32;
constexpr int kMaxKeyBytes = 256;

[[noreturn]] void fail() {
  throw ValueError("its normalization rules (precompiled_charsmap) are damaged");
}

class Trie {
 public:
  Trie(std::vector<std::uint32_t> units, std::size_t text_size)
      : units_(std::move(units)), text_size_(text_size), prefixes_(units_.size(), kUnseen) {}

  void check() {
    if (count_prefixes(0, 0) > kMaxCommonPrefixes) fail();
  }

 private:
  static constexpr int kUnseen = -1;
  static constexpr int kOpen = -2;  // it is on the way that is being walked

  // The most keys on one way down from the node, its own included. Throws where a lookup would
  // leave the array or go in a circle.
  int count_prefixes(std::size_t node, int depth) {
    if (prefixes_[node] == kOpen || depth > kMaxKeyBytes) fail();
    if (prefixes_[node] != kUnseen) return prefixes_[node];
    prefixes_[node] = kOpen;
    const std::uint32_t unit = units_[node];
    const std::size_t base = node ^ ((unit >> 10) << ((unit & (1U << 9)) >> 6));
    const bool is_key = ((unit >> 8) & 1) != 0;
    if (is_key && (base >= units_.size() || (units_[base] & 0x7FFFFFFFU) >= text_size_)) fail();
    int below = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::size_t child = base ^ byte;
      if (child >= units_.size()) fail();
      if ((units_[child] & 0x800000FFU) == byte) {
        below = std::max(below, count_prefixes(child, depth + 1));
      }
    }
    return prefixes_[node] = below + (is_key ? 1 : 0);
  }

  std::vector<std::uint32_t> units_;
  std::size_t text_size_;
  std::vector<int> prefixes_;
};

}  // namespace

void check_charsmap(std::string_view charsmap) {
  if (charsmap.empty()) return;
  std::uint32_t trie_bytes = 0;
  if (charsmap.size() <= sizeof(trie_bytes)) fail();
  std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
  charsmap.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes >= charsmap.size() || trie_bytes % sizeof(std::uint32_t) != 0)
    fail();
  std::vector<std::uint32_t> units(trie_bytes / sizeof(std::uint32_t));
  std::memcpy(units.data(), charsmap.data(), trie_bytes);
  const std::string_view texts = charsmap.substr(trie_bytes);
  if (texts.back() != '\0' || find_invalid_utf8(texts) != std::string_view::npos) fail();
  Trie(std::move(units), texts.size()).check();
}

}  // namespace kvcache::detail
