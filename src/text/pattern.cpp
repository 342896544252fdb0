#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <optional>
#include <utility>

#include "kvcache/core/errors.h"
#include "text/json_node.h"
#include "text/unicode.h"

namespace kvcache::detail {

namespace {

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <auto Free>
struct Freeing {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Freeing<&pcre2_compile_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freeing<&pcre2_match_data_free>>;

}  // namespace

struct Pattern::Code {
  std::unique_ptr<pcre2_code, Freeing<&pcre2_code_free>> compiled;

  // Where the next match at or after `start` lies.
  std::optional<std::pair<std::size_t, std::size_t>> match(std::string_view text, std::size_t start,
                                                           pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // The text was checked once, by the tokenizer; checking it at every match would be quadratic.
    int result =
        pcre2_match(compiled.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, nullptr);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      result = pcre2_match(compiled.get(), subject, text.size(), start,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
    }
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    check_state(result >= 0, "a tokenizer pattern failed on a text of ", text.size(),
                " bytes at byte ", start, ": ", pcre2_message(result),
                "; split the text into smaller parts");
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data);
    return std::pair{bounds[0], bounds[1]};
  }
};

Pattern Pattern::regex(std::string_view oniguruma, std::string_view where) {
  std::string translated;
  try {
    translated = pcre2_pattern_from_oniguruma(oniguruma);
  } catch (const ValueError& error) {
    throw ValueError(c10::str(where, ": ", error.what()));
  }
  const CompileContext context(pcre2_compile_context_create(nullptr));
  check_state(context != nullptr, where, ": no memory for a pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->compiled.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, context.get()));
  check_value(code->compiled != nullptr, where, ": ", pcre2_message(error), " at byte ", offset,
              " of the pattern ", translated);
  // Without JIT on this machine the interpreter matches the same, slower.
  pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE);
  Pattern pattern;
  pattern.code_ = std::move(code);
  return pattern;
}

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::from_json(const JsonNode& node) {
  if (const auto regex_node = node.find("Regex")) {
    return regex(regex_node->string(), regex_node->path());
  }
  const auto literal_node = node.find("String");
  check_value(literal_node.has_value(), node.path(),
              " must have the member \"String\" or \"Regex\"");
  std::string text = literal_node->string();
  check_value(!text.empty(), literal_node->path(), " must not be empty");
  return literal(std::move(text));
}

std::vector<Span> Pattern::find(std::string_view text) const {
  std::vector<Span> spans;
  if (text.empty()) return spans;
  std::size_t covered = 0;
  const auto add_match = [&](std::size_t begin, std::size_t end) {
    if (covered != begin) spans.push_back({covered, begin, false});
    spans.push_back({begin, end, true});
    covered = end;
  };
  if (code_ == nullptr) {
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, covered)) {
      add_match(at, at + literal_.size());
    }
  } else {
    const MatchData data(pcre2_match_data_create(1, nullptr));
    check_state(data != nullptr, "no memory to match a pattern");
    std::optional<std::size_t> last_end;
    for (std::size_t start = 0; start <= text.size();) {
      const auto found = code_->match(text, start, data.get());
      if (!found) break;
      const auto [begin, end] = *found;
      if (begin == end && last_end == end) {  // no empty match right behind another match
        if (end >= text.size()) break;
        start = end;
        next_code_point(text, start);
        continue;
      }
      add_match(begin, end);
      last_end = end;
      start = end;
    }
  }
  if (covered != text.size()) spans.push_back({covered, text.size(), false});
  return spans;
}

}  // namespace kvcache::detail
