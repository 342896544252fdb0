#include "text/pre_tokenizers.h"

#include <utility>

#include "kvcache/core/errors.h"
#include "text/byte_alphabet.h"
#include "text/json_node.h"
#include "text/metaspace.h"
#include "text/pattern.h"
#include "text/split_behavior.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

using Made = std::unique_ptr<const PreTokenizer>;

void append_pieces(std::string_view text, const std::vector<Span>& spans,
                   std::vector<std::string>& pieces) {
  for (const Span& span : spans) {
    if (span.begin < span.end) pieces.emplace_back(text.substr(span.begin, span.end - span.begin));
  }
}

// Spans of single characters for which `matches` holds, and what lies between.
template <typename Matches>
std::vector<Span> find_characters(std::string_view text, Matches matches) {
  std::vector<Span> spans;
  std::size_t covered = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!matches(next_code_point(text, at))) continue;
    if (covered < begin) spans.push_back({covered, begin, false});
    spans.push_back({begin, at, true});
    covered = at;
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), false});
  return spans;
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, bool, std::vector<std::string>& pieces) const override {
    std::vector<Span> spans = pattern_.find(text);
    if (invert_) {
      for (Span& span : spans) span.matched = !span.matched;
    }
    append_pieces(text, apply_split_behavior(std::move(spans), behavior_), pieces);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    // GPT-2's words: contractions, letters, digits, others, each with at most one space before it.
    constexpr const char* kWords =
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    if (use_regex) words_ = Pattern::regex(kWords, "ByteLevel");
  }

  void split(std::string_view text, bool, std::vector<std::string>& pieces) const override {
    std::string prefixed;
    if (add_prefix_space_ && text.front() != ' ') {
      prefixed = " " + std::string(text);
      text = prefixed;
    }
    if (!words_) {
      pieces.push_back(to_byte_alphabet(text));
      return;
    }
    for (const Span& span : words_->find(text)) {
      pieces.push_back(to_byte_alphabet(text.substr(span.begin, span.end - span.begin)));
    }
  }

 private:
  bool add_prefix_space_;
  std::optional<Pattern> words_;
};

// Splits at characters of a class.
template <bool (*kMatches)(CodePoint)>
class CharacterSplit final : public PreTokenizer {
 public:
  explicit CharacterSplit(SplitBehavior behavior) : behavior_(behavior) {}

  void split(std::string_view text, bool, std::vector<std::string>& pieces) const override {
    append_pieces(text, apply_split_behavior(find_characters(text, kMatches), behavior_), pieces);
  }

 private:
  SplitBehavior behavior_;
};

// Runs of word characters, and runs of what is neither word nor white space.
class Whitespace final : public PreTokenizer {
 public:
  void split(std::string_view text, bool, std::vector<std::string>& pieces) const override {
    enum class Kind { kSpace, kWord, kOther };
    Kind current = Kind::kSpace;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const CodePoint code = next_code_point(text, at);
      const Kind kind =
          is_word(code) ? Kind::kWord : (is_white_space(code) ? Kind::kSpace : Kind::kOther);
      if (kind != Kind::kSpace) {
        if (kind != current) pieces.emplace_back();
        pieces.back() += text.substr(begin, at - begin);
      }
      current = kind;
    }
  }
};

// Spaces become a visible character, which may also be put before the text; pieces begin with it.
class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace options) : options_(std::move(options)) {}

  void split(std::string_view text, bool begins_text,
             std::vector<std::string>& pieces) const override {
    const bool prepends = options_.prepend == Metaspace::Prepend::kAlways ||
                          (options_.prepend == Metaspace::Prepend::kFirst && begins_text);
    std::string piece;
    piece.reserve(text.size() + options_.replacement.size());
    const bool has_prefix = text.front() == ' ' || text.starts_with(options_.replacement);
    if (prepends && !has_prefix) piece = options_.replacement;
    for (std::size_t at = 0; at < text.size();) {
      const bool space = text[at] == ' ';
      if (options_.split && !piece.empty() &&
          (space || text.substr(at).starts_with(options_.replacement))) {
        pieces.push_back(std::exchange(piece, {}));
      }
      const std::size_t begin = at;
      next_code_point(text, at);
      piece += space ? std::string_view(options_.replacement) : text.substr(begin, at - begin);
    }
    pieces.push_back(std::move(piece));
  }

  bool depends_on_place() const override { return options_.prepend == Metaspace::Prepend::kFirst; }

 private:
  Metaspace options_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<Made> steps) : steps_(std::move(steps)) {}

  void split(std::string_view text, bool begins_text,
             std::vector<std::string>& pieces) const override {
    std::vector<std::string> current{std::string(text)};
    for (const auto& step : steps_) {
      std::vector<std::string> next;
      for (const auto& piece : current) step->split(piece, begins_text, next);
      current = std::move(next);
    }
    for (auto& piece : current) pieces.push_back(std::move(piece));
  }

  bool depends_on_place() const override {
    return !steps_.empty() && steps_.front()->depends_on_place();
  }

 private:
  std::vector<Made> steps_;
};

Made make_split(const JsonNode& node) {
  return std::make_unique<Split>(Pattern::from_json(node.at("pattern")),
                                 split_behavior_from_json(node.at("behavior")),
                                 node.at("invert").boolean());
}

Made make_byte_level(const JsonNode& node) {
  return std::make_unique<ByteLevel>(node.at("add_prefix_space").boolean(),
                                     node.boolean_or("use_regex", true));
}

Made make_digits(const JsonNode& node) {
  const bool individual = node.at("individual_digits").boolean();
  return std::make_unique<CharacterSplit<is_numeric>>(individual ? SplitBehavior::kIsolated
                                                                 : SplitBehavior::kContiguous);
}

Made make_punctuation(const JsonNode& node) {
  const auto behavior = node.find("behavior");
  return std::make_unique<CharacterSplit<is_punctuation>>(
      behavior ? split_behavior_from_json(*behavior) : SplitBehavior::kIsolated);
}

Made make_metaspace(const JsonNode& node) {
  return std::make_unique<MetaspacePreTokenizer>(metaspace_from_json(node));
}

Made make_whitespace(const JsonNode&) { return std::make_unique<Whitespace>(); }

Made make_whitespace_split(const JsonNode&) {
  return std::make_unique<CharacterSplit<is_white_space>>(SplitBehavior::kRemoved);
}

Made make_sequence(const JsonNode& node) {
  std::vector<Made> steps;
  for (const auto& element : node.at("pretokenizers").elements()) {
    steps.push_back(make_pre_tokenizer(element));
    // What the `tokenizers` library looks at is the piece's place in the text before normalization,
    // which is not kept.
    check_value(steps.size() == 1 || !steps.back()->depends_on_place(), element.path(),
                ": prepend_scheme \"first\" is known here only as the first of a Sequence");
  }
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

constexpr ComponentKind<PreTokenizer> kKinds[] = {
    {"Split", make_split},           {"ByteLevel", make_byte_level},
    {"Digits", make_digits},         {"Punctuation", make_punctuation},
    {"Whitespace", make_whitespace}, {"WhitespaceSplit", make_whitespace_split},
    {"Metaspace", make_metaspace},   {"Sequence", make_sequence},
};

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const JsonNode& node) {
  return make_component<PreTokenizer>(node, kKinds);
}

}  // namespace kvcache::detail
