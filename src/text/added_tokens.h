// Added tokens: texts that are tokens of their own whatever the model would make of them, special
// ones
// ("<|im_end|>") among them. They are found before (or after) normalization and never split.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/model.h"
#include "text/normalizers.h"
#include "text/token_map.h"

namespace kvcache::detail {

struct AddedToken {
  std::string content;
  bool single_word = false;  // not where a word character is its neighbour
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

// Reads the flags and content of a token as tokenizer.json and tokenizer_config.json write it.
AddedToken added_token_from_json(const JsonNode& node);

// A part of a text: a token, or text yet to be tokenized.
struct Section {
  std::string_view text;  // of a token: as it is spelled there
  std::optional<std::int64_t> id;
};

class AddedTokens {
 public:
  // Both must outlive this object; `normalizer` may be null.
  AddedTokens(const Model& model, const Normalizer* normalizer)
      : model_(&model), normalizer_(normalizer) {}

  // Adds tokens in order. A token that the vocabulary has keeps its id, and new flags replace old
  // ones; a new one gets the next free id. Throws ValueError where two would be looked for by the
  // same text.
  void add(const std::vector<AddedToken>& tokens);

  // Cuts `text` at the tokens that are looked for before normalization (or, `normalized`, after
  // it). A special token is left in the text unless `parse_special`, which is asked where it is
  // spelled, allows it.
  using ParseSpecial = std::function<bool(std::size_t begin, std::size_t end)>;
  std::vector<Section> split(std::string_view text, bool normalized,
                             const ParseSpecial& parse_special) const;

  // Of added tokens and the model's.
  std::optional<std::int64_t> token_to_id(std::string_view token) const;
  // Null for an unknown id. An added token comes in its normalized form, as decoders expect it.
  const std::string* id_to_token(std::int64_t id) const;
  // The flags and content under which an added token is known, or null.
  const AddedToken* find(std::string_view content) const;
  bool is_special(std::string_view token) const { return special_.contains(token); }
  // Number of different tokens, the model's included.
  std::int64_t vocab_size() const;

 private:
  struct Entry {
    AddedToken token;
    std::string text;  // what is looked for: the content, normalized if the token says so
  };

  // Finds the longest of a set of texts that begins at a place.
  struct Matcher {
    TokenMap<std::int64_t> ids;
    std::array<std::vector<std::size_t>, 256> lengths;  // by first byte, longest first
    void add(const std::string& text, std::int64_t id);
    std::optional<std::int64_t> longest(std::string_view text, std::size_t at,
                                        std::size_t& length) const;
  };

  void rebuild_matchers();

  const Model* model_;
  const Normalizer* normalizer_;
  std::unordered_map<std::int64_t, Entry> entries_;
  TokenMap<std::int64_t> ids_;
  std::unordered_set<std::string, TokenHash, std::equal_to<>> special_;
  Matcher raw_;
  Matcher normalized_;
};

}  // namespace kvcache::detail
