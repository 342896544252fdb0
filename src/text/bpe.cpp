#include "text/bpe.h"

#include <array>
#include <cstdio>
#include <queue>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

std::uint64_t pair_key(std::int64_t left, std::int64_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
}

// A symbol in the list of those left; positions are indices, -1 is none.
struct Symbol {
  std::int64_t id;
  std::int64_t previous;
  std::int64_t next;
};

constexpr std::int64_t kMerged = -1;  // id of a symbol that has become part of the one before it

struct Candidate {
  std::uint32_t rank;
  std::int64_t position;  // of the left symbol
  std::int64_t merged_id;

  // std::priority_queue takes the greatest first: the lowest rank, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

// Reads model.vocab. (No JsonNode for each token or merge: real files have hundreds of thousands.)
Bpe::Vocabulary vocabulary_from_json(const JsonNode& node) {
  if (!node.value().is_object()) node.fail("an object");
  Bpe::Vocabulary vocabulary;
  vocabulary.reserve(node.value().size());
  for (const auto& [token, value] : node.value().items()) {
    const auto id = as_token_id(value);
    check_value(id.has_value(), node.path(), "[\"", token,
                "\"] must be an integer from 0 to 2147483647");
    vocabulary.emplace(token, *id);
  }
  return vocabulary;
}

// Reads model.merges in both of its forms: "a b", and ["a", "b"].
Bpe::Merges merges_from_json(const JsonNode& node) {
  if (!node.value().is_array()) node.fail("an array");
  Bpe::Merges merges;
  merges.reserve(node.value().size());
  for (const auto& value : node.value()) {
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;  // the first line of the merges.txt it came from
      const auto space = text.find(' ');
      check_value(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
                  node.path(), "[", merges.size(),
                  "] must be two tokens with one space between, not \"", text, "\"");
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      const bool pair =
          value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string();
      check_value(pair, node.path(), "[", merges.size(), "] must be a pair of tokens");
      merges.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
    }
  }
  return merges;
}

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  tokens_.reserve(vocabulary_.size());
  for (const auto& [token, id] : vocabulary_) {
    const auto [other, fresh] = tokens_.emplace(id, &token);
    check_value(fresh, "model.vocab gives the id ", id, " to both \"", *other->second, "\" and \"",
                token, "\"");
  }
  const auto id_of = [this](const std::string& token, std::size_t rank) {
    const auto found = vocabulary_.find(token);
    check_value(found != vocabulary_.end(), "model.merges[", rank, "] needs the token \"", token,
                "\", which is not in model.vocab");
    return found->second;
  };
  merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    check_value(right.starts_with(options_.continuing_subword_prefix), "model.merges[", rank,
                "]: \"", right, "\" lacks the continuing_subword_prefix \"",
                options_.continuing_subword_prefix, "\"");
    const std::int64_t left_id = id_of(left, rank);
    const std::int64_t right_id = id_of(right, rank);
    const auto merged = left + right.substr(options_.continuing_subword_prefix.size());
    merges_[pair_key(left_id, right_id)] = {static_cast<std::uint32_t>(rank), id_of(merged, rank)};
  }
}

std::optional<std::int64_t> Bpe::token_to_id(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) return std::nullopt;
  return found->second;
}

const std::string* Bpe::id_to_token(std::int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

std::int64_t Bpe::vocab_size() const { return static_cast<std::int64_t>(vocabulary_.size()); }

const Bpe::Merge* Bpe::find_merge(std::int64_t left, std::int64_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::tokenize(std::string_view piece, std::vector<std::int64_t>& ids) const {
  if (options_.ignore_merges) {
    if (const auto id = token_to_id(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  merge_symbols(symbols_of(piece), ids);
}

// Appends the tokens "<0xHH>" of the character's bytes, if the vocabulary has all of them.
bool Bpe::append_bytes(std::string_view character, std::vector<std::int64_t>& symbols) const {
  std::vector<std::int64_t> bytes;
  for (const char byte : character) {
    std::array<char, 8> token{};
    std::snprintf(token.data(), token.size(), "<0x%02X>", static_cast<unsigned char>(byte));
    const auto id = token_to_id(token.data());
    if (!id) return false;
    bytes.push_back(*id);
  }
  symbols.insert(symbols.end(), bytes.begin(), bytes.end());
  return true;
}

// The characters' ids. A character that is not in the vocabulary becomes its bytes or the unknown
// token, as the options say; without either it is dropped, as in the `tokenizers` library.
std::vector<std::int64_t> Bpe::symbols_of(std::string_view piece) const {
  std::vector<std::int64_t> symbols;
  symbols.reserve(piece.size());
  bool unknown = false;  // an unknown token waits to be fused with the next
  std::optional<std::int64_t> unk_id;
  std::string key;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t begin = at;
    next_code_point(piece, at);
    key.assign(begin > 0 ? options_.continuing_subword_prefix : "");
    key += piece.substr(begin, at - begin);
    if (at == piece.size()) key += options_.end_of_word_suffix;
    if (const auto id = token_to_id(key)) {
      if (unknown) symbols.push_back(*unk_id);
      unknown = false;
      symbols.push_back(*id);
    } else if (options_.byte_fallback && append_bytes(key, symbols)) {
      continue;
    } else if (options_.unk_token) {
      unk_id = token_to_id(*options_.unk_token);
      check_value(unk_id.has_value(), "the text has a character that is not in the vocabulary (\"",
                  key, "\"), and neither is model.unk_token \"", *options_.unk_token, "\"");
      if (unknown && !options_.fuse_unk) symbols.push_back(*unk_id);
      unknown = true;
    }
  }
  if (unknown) symbols.push_back(*unk_id);
  return symbols;
}

void Bpe::merge_symbols(const std::vector<std::int64_t>& symbols,
                        std::vector<std::int64_t>& ids) const {
  const auto count = static_cast<std::int64_t>(symbols.size());
  std::vector<Symbol> list;
  list.reserve(symbols.size());
  for (std::int64_t i = 0; i < count; ++i) {
    list.push_back({symbols[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto symbol = [&list](std::int64_t position) -> Symbol& {
    return list[static_cast<std::size_t>(position)];
  };
  std::priority_queue<Candidate> queue;
  const auto offer = [&](std::int64_t position) {
    if (position < 0 || symbol(position).next < 0) return;
    const Merge* merge = find_merge(symbol(position).id, symbol(symbol(position).next).id);
    if (merge != nullptr) queue.push({merge->rank, position, merge->id});
  };
  for (std::int64_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.position);
    if (left.id == kMerged || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->id != best.merged_id)
      continue;  // one of the two has changed since
    left.id = best.merged_id;
    left.next = right.next;
    right.id = kMerged;
    if (left.next >= 0) symbol(left.next).previous = best.position;
    offer(left.previous);
    offer(best.position);
  }
  for (const Symbol& left : list) {
    if (left.id != kMerged) ids.push_back(left.id);
  }
}

std::unique_ptr<const Model> make_bpe(const JsonNode& node) {
  if (const auto dropout = node.find("dropout")) {
    const auto& value = dropout->value();
    if (!value.is_number() || value.get<double>() != 0.0) {
      dropout->fail("null or 0 (a tokenizer with dropout is random)");
    }
  }
  BpeOptions options;
  options.unk_token = node.string_if("unk_token");
  options.continuing_subword_prefix = node.string_if("continuing_subword_prefix").value_or("");
  options.end_of_word_suffix = node.string_if("end_of_word_suffix").value_or("");
  options.fuse_unk = node.boolean_or("fuse_unk", false);
  options.byte_fallback = node.boolean_or("byte_fallback", false);
  options.ignore_merges = node.boolean_or("ignore_merges", false);

  return std::make_unique<Bpe>(vocabulary_from_json(node.at("vocab")),
                               merges_from_json(node.at("merges")), std::move(options));
}

}  // namespace kvcache::detail
