#include "text/normalizers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/pattern.h"
#include "text/unicode.h"
#include "text/unicode_forms.h"

namespace kvcache::detail {

namespace {

using Made = std::unique_ptr<const Normalizer>;

template <UnicodeForm kForm>
class FormNormalizer final : public Normalizer {
 public:
  std::string normalize(std::string_view text) const override {
    return to_unicode_form(text, kForm);
  }
};

class Lowercase final : public Normalizer {
 public:
  std::string normalize(std::string_view text) const override {
    std::string lower;
    lower.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) append_lower_case(lower, next_code_point(text, at));
    return lower;
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string normalize(std::string_view text) const override {
    return text.empty() ? std::string() : prefix_ + std::string(text);
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  std::string normalize(std::string_view text) const override {
    std::string replaced;
    replaced.reserve(text.size());
    for (const Span& span : pattern_.find(text)) {
      replaced += span.matched ? std::string_view(content_)
                               : text.substr(span.begin, span.end - span.begin);
      check_value(replaced.size() <= kMostBytes, "a Replace normalizer makes more than ",
                  kMostBytes, " bytes of a text; encode it in parts, if the tokenizer is right");
    }
    return replaced;
  }

  bool keeps_start() const override {
    const std::string& literal = pattern_.literal_text();
    std::size_t end = 0;
    if (!literal.empty()) next_code_point(literal, end);
    return !content_.empty() && !literal.empty() && end == literal.size();
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 24;  // several in turn multiply

  Pattern pattern_;
  std::string content_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  std::string normalize(std::string_view text) const override {
    std::size_t begin = 0;
    std::size_t end = text.size();
    while (left_ && begin < end) {
      std::size_t next = begin;
      if (!is_white_space(next_code_point(text, next))) break;
      begin = next;
    }
    while (right_ && end > begin) {
      std::size_t previous = end;
      if (!is_white_space(previous_code_point(text, previous))) break;
      end = previous;
    }
    return std::string(text.substr(begin, end - begin));
  }

  bool keeps_start() const override { return !left_; }

 private:
  bool left_;
  bool right_;
};

class StripAccents final : public Normalizer {
 public:
  std::string normalize(std::string_view text) const override {
    std::string stripped;
    stripped.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      if (!is_mark(next_code_point(text, at))) stripped += text.substr(begin, at - begin);
    }
    return stripped;
  }

  bool keeps_start() const override { return false; }
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<Made> steps) : steps_(std::move(steps)) {}

  std::string normalize(std::string_view text) const override {
    std::string result(text);
    for (const auto& step : steps_) result = step->normalize(result);
    return result;
  }

  bool keeps_start() const override {
    return std::all_of(steps_.begin(), steps_.end(),
                       [](const Made& step) { return step->keeps_start(); });
  }

 private:
  std::vector<Made> steps_;
};

template <typename T>
Made make_plain(const JsonNode&) {
  return std::make_unique<T>();
}

Made make_prepend(const JsonNode& node) {
  return std::make_unique<Prepend>(node.at("prepend").string());
}

Made make_replace(const JsonNode& node) {
  return std::make_unique<Replace>(Pattern::from_json(node.at("pattern")),
                                   node.at("content").string());
}

Made make_strip(const JsonNode& node) {
  return std::make_unique<Strip>(node.at("strip_left").boolean(), node.at("strip_right").boolean());
}

Made make_sequence(const JsonNode& node) {
  std::vector<Made> steps;
  for (const auto& element : node.at("normalizers").elements()) {
    steps.push_back(make_normalizer(element));
  }
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

constexpr ComponentKind<Normalizer> kKinds[] = {
    {"NFC", make_plain<FormNormalizer<UnicodeForm::kNfc>>},
    {"NFD", make_plain<FormNormalizer<UnicodeForm::kNfd>>},
    {"NFKC", make_plain<FormNormalizer<UnicodeForm::kNfkc>>},
    {"NFKD", make_plain<FormNormalizer<UnicodeForm::kNfkd>>},
    {"Lowercase", make_plain<Lowercase>},
    {"Prepend", make_prepend},
    {"Replace", make_replace},
    {"Strip", make_strip},
    {"StripAccents", make_plain<StripAccents>},
    {"Sequence", make_sequence},
};

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const JsonNode& node) {
  return make_component<Normalizer>(node, kKinds);
}

}  // namespace kvcache::detail
