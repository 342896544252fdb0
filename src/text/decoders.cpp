#include "text/decoders.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/json_node.h"
#include "text/metaspace.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

using Made = std::unique_ptr<const Decoder>;

// Tokens of the byte-level alphabet -> one text. A token with another character stands for itself.
class ByteLevelStage final : public DecoderStage {
 public:
  void write(std::string_view fragment, bool ends_token) override {
    token_ += fragment;
    if (!ends_token) return;
    std::string text;
    const auto bytes = from_byte_alphabet(token_);
    characters_.write(bytes ? *bytes : token_, text);
    token_.clear();
    if (!text.empty()) pass(text, false);
  }

  void finish() override {
    std::string text;
    characters_.finish(text);
    pass(text, true);
  }

 private:
  std::string token_;
  Utf8Stream characters_;
};

// All tokens -> one.
class FuseStage final : public DecoderStage {
 public:
  void write(std::string_view fragment, bool) override { pass(fragment, false); }
  void finish() override { pass({}, true); }
};

// Tokens "<0xHH>" -> the characters of their bytes. A run of them that is not UTF-8 becomes one
// U+FFFD a byte, all of it; so a run is certain only at its end.
class ByteFallbackStage final : public DecoderStage {
 public:
  void write(std::string_view fragment, bool ends_token) override {
    if (!is_text_) {
      token_ += fragment;
      if (token_.size() > kByteTokenSize || (ends_token && !byte_of(token_))) {
        end_run();
        is_text_ = true;
        fragment = token_;
      }
    }
    if (is_text_) {
      pass(fragment, ends_token);
    } else if (ends_token) {
      run_.push_back(*byte_of(token_));
    }
    if (ends_token || is_text_) token_.clear();
    if (ends_token) is_text_ = false;
  }

  void finish() override { end_run(); }

 private:
  static constexpr std::size_t kByteTokenSize = 6;

  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != kByteTokenSize || !token.starts_with("<0x") || token.back() != '>') {
      return std::nullopt;
    }
    unsigned value = 0;
    const char* end = token.data() + 5;
    if (std::from_chars(token.data() + 3, end, value, 16).ptr != end) return std::nullopt;
    return static_cast<char>(value);
  }

  void end_run() {
    if (run_.empty()) return;
    if (find_invalid_utf8(run_) == std::string_view::npos) {
      pass(run_, true);
    } else {
      for (std::size_t i = 0; i < run_.size(); ++i) pass(kReplacementCharacter, true);
    }
    run_.clear();
  }

  std::string token_;     // the token so far, while it may be a byte
  bool is_text_ = false;  // the current token is none
  std::string run_;
};

// Replaces a literal within each token. Holds back only what may begin it.
class ReplaceLiteralStage final : public DecoderStage {
 public:
  ReplaceLiteralStage(const std::string& pattern, const std::string& content)
      : pattern_(pattern), content_(content) {}

  void write(std::string_view fragment, bool ends_token) override {
    held_ += fragment;
    std::string text;
    std::size_t done = 0;
    for (auto at = held_.find(pattern_); at != std::string::npos; at = held_.find(pattern_, done)) {
      text += held_.substr(done, at - done) + content_;
      done = at + pattern_.size();
    }
    std::size_t keep = ends_token ? 0 : std::min(pattern_.size() - 1, held_.size() - done);
    while (keep > 0 && !std::string_view(pattern_).starts_with(
                           std::string_view(held_).substr(held_.size() - keep))) {
      --keep;
    }
    text += held_.substr(done, held_.size() - keep - done);
    held_.erase(0, held_.size() - keep);
    if (!text.empty() || ends_token) pass(text, ends_token);
  }

 private:
  const std::string& pattern_;
  const std::string& content_;
  std::string held_;
};

// Replaces the matches of a regular expression within each token, which it therefore needs whole.
class ReplaceRegexStage final : public DecoderStage {
 public:
  ReplaceRegexStage(const Pattern& pattern, const std::string& content)
      : pattern_(pattern), content_(content) {}

  void write(std::string_view fragment, bool ends_token) override {
    token_ += fragment;
    if (!ends_token) return;
    std::string text;
    for (const Span& span : pattern_.find(token_)) {
      text += span.matched ? content_ : token_.substr(span.begin, span.end - span.begin);
    }
    token_.clear();
    pass(text, true);
  }

 private:
  const Pattern& pattern_;
  const std::string& content_;
  std::string token_;
};

struct StripLimits {
  std::string content;  // one character
  std::int64_t start;   // at most so many at a token's start
  std::int64_t stop;    // and at its end
};

class StripStage final : public DecoderStage {
 public:
  explicit StripStage(const StripLimits& limits) : limits_(limits) {}

  void write(std::string_view fragment, bool ends_token) override {
    while (left_ < limits_.start && fragment.starts_with(limits_.content)) {
      fragment.remove_prefix(limits_.content.size());
      ++left_;
    }
    if (!fragment.empty()) left_ = limits_.start;
    held_ += fragment;
    std::size_t end = held_.size();
    for (std::int64_t i = 0; i < limits_.stop; ++i) {
      if (!std::string_view(held_).substr(0, end).ends_with(limits_.content)) break;
      end -= limits_.content.size();
    }
    const std::string text = held_.substr(0, end);
    held_.erase(0, end);
    if (!text.empty() || ends_token) pass(text, ends_token);
    if (ends_token) {
      left_ = 0;
      held_.clear();
    }
  }

 private:
  const StripLimits& limits_;
  std::int64_t left_ = 0;  // stripped so far; all of them once other text has come
  std::string held_;       // what is stripped if the token ends here
};

// A visible character in place of each space -> spaces; those of the first token are left out if
// one is put before every text.
class MetaspaceStage final : public DecoderStage {
 public:
  explicit MetaspaceStage(const Metaspace& options)
      : options_(options), strips_(options.prepend != Metaspace::Prepend::kNever) {}

  void write(std::string_view fragment, bool ends_token) override {
    const std::string& replacement = options_.replacement;
    std::string text;
    std::size_t done = 0;
    for (auto at = fragment.find(replacement); at != std::string_view::npos;
         at = fragment.find(replacement, done)) {
      text += fragment.substr(done, at - done);
      if (!strips_) text += ' ';
      done = at + replacement.size();
    }
    text += fragment.substr(done);
    if (ends_token) strips_ = false;
    pass(text, ends_token);
  }

 private:
  const Metaspace& options_;
  bool strips_;  // no token has ended yet
};

// Joins tokens by spaces: what happens where a tokenizer has no decoder.
class JoinStage final : public DecoderStage {
 public:
  void write(std::string_view fragment, bool) override {
    pass(first_ ? std::string(fragment) : " " + std::string(fragment), false);
    first_ = false;
  }

 private:
  bool first_ = true;
};

template <typename Stage>
class PlainDecoder final : public Decoder {
 public:
  void append_stages(DecoderStages& stages) const override {
    stages.push_back(std::make_unique<Stage>());
  }
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void append_stages(DecoderStages& stages) const override {
    if (pattern_.literal_text().empty()) {
      stages.push_back(std::make_unique<ReplaceRegexStage>(pattern_, content_));
    } else {
      stages.push_back(std::make_unique<ReplaceLiteralStage>(pattern_.literal_text(), content_));
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripDecoder final : public Decoder {
 public:
  explicit StripDecoder(StripLimits limits) : limits_(std::move(limits)) {}
  void append_stages(DecoderStages& stages) const override {
    stages.push_back(std::make_unique<StripStage>(limits_));
  }

 private:
  StripLimits limits_;
};

class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(Metaspace options) : options_(std::move(options)) {}
  void append_stages(DecoderStages& stages) const override {
    stages.push_back(std::make_unique<MetaspaceStage>(options_));
  }

 private:
  Metaspace options_;
};

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(std::vector<Made> steps) : steps_(std::move(steps)) {}
  void append_stages(DecoderStages& stages) const override {
    for (const auto& step : steps_) step->append_stages(stages);
  }

 private:
  std::vector<Made> steps_;
};

template <typename Stage>
Made make_plain(const JsonNode&) {
  return std::make_unique<PlainDecoder<Stage>>();
}

Made make_replace(const JsonNode& node) {
  return std::make_unique<ReplaceDecoder>(Pattern::from_json(node.at("pattern")),
                                          node.at("content").string());
}

Made make_strip(const JsonNode& node) {
  return std::make_unique<StripDecoder>(StripLimits{
      node.at("content").one_character(), node.at("start").count(), node.at("stop").count()});
}

Made make_metaspace(const JsonNode& node) {
  return std::make_unique<MetaspaceDecoder>(metaspace_from_json(node));
}

Made make_sequence(const JsonNode& node) {
  std::vector<Made> steps;
  for (const auto& element : node.at("decoders").elements()) steps.push_back(make_decoder(element));
  return std::make_unique<DecoderSequence>(std::move(steps));
}

constexpr ComponentKind<Decoder> kKinds[] = {
    {"ByteLevel", make_plain<ByteLevelStage>},
    {"ByteFallback", make_plain<ByteFallbackStage>},
    {"Fuse", make_plain<FuseStage>},
    {"Metaspace", make_metaspace},
    {"Replace", make_replace},
    {"Strip", make_strip},
    {"Sequence", make_sequence},
};

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const JsonNode& node) {
  return make_component<Decoder>(node, kKinds);
}

class DecoderChain::Collector final : public DecoderStage {
 public:
  void write(std::string_view fragment, bool) override { text += fragment; }
  std::string text;
};

DecoderChain::DecoderChain(const Decoder* decoder) {
  if (decoder != nullptr) {
    decoder->append_stages(stages_);
  } else {
    stages_.push_back(std::make_unique<JoinStage>());
  }
  auto collector = std::make_unique<Collector>();
  collector_ = collector.get();
  stages_.push_back(std::move(collector));
  for (std::size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->set_next(*stages_[i + 1]);
}

void DecoderChain::finish() {
  for (const auto& stage : stages_) stage->finish();
}

std::string DecoderChain::take() { return std::exchange(collector_->text, {}); }

}  // namespace kvcache::detail
