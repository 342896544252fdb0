// Byte pair encoding (Sennrich et al., https://arxiv.org/abs/1508.07909): pairs of neighbours are
// merged in the order of their rank. Time O(n log n) in the length of a piece; no cache, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/model.h"
#include "text/token_map.h"

namespace kvcache::detail {

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a piece that is a token of the vocabulary is that token
};

class Bpe final : public Model {
 public:
  using Vocabulary = TokenMap<std::int64_t>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // Throws ValueError if two tokens share an id, or a merge or its result is not in the vocabulary.
  Bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  void tokenize(std::string_view piece, std::vector<std::int64_t>& ids) const override;
  std::optional<std::int64_t> token_to_id(std::string_view token) const override;
  const std::string* id_to_token(std::int64_t id) const override;
  std::int64_t vocab_size() const override;
  std::optional<std::string> unk_token() const override { return options_.unk_token; }

 private:
  struct Merge {
    std::uint32_t rank;
    std::int64_t id;
  };

  std::vector<std::int64_t> symbols_of(std::string_view piece) const;
  bool append_bytes(std::string_view character, std::vector<std::int64_t>& symbols) const;
  const Merge* find_merge(std::int64_t left, std::int64_t right) const;
  void merge_symbols(const std::vector<std::int64_t>& symbols,
                     std::vector<std::int64_t>& ids) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::int64_t, const std::string*> tokens_;  // point into vocabulary_
  std::unordered_map<std::uint64_t, Merge> merges_;              // by left id << 32 | right id
  BpeOptions options_;
};

std::unique_ptr<const Model> make_bpe(const JsonNode& node);

}  // namespace kvcache::detail
