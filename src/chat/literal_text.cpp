#include "chat/literal_text.h"

#include <algorithm>
#include <utility>

#include "chat/json_text.h"
#include "chat/json_values.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

using jinja::Value;

// What stands between the two is no special token. Where one of them occurs in a text itself it
// stands alone between them, as no special token can be empty.
constexpr std::string_view kBegin = "\uFDD0", kEnd = "\uFDD1";

void append_escaped(std::string& result, std::string_view text) {
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(kBegin), text.find(kEnd));
    result += text.substr(0, at);
    if (at == std::string_view::npos) return;
    const std::string_view mark = text.substr(at, kBegin.size());
    result.append(kBegin).append(mark).append(kEnd);
    text.remove_prefix(at + mark.size());
  }
}

std::string marked(const std::string& text, const Tokenizer& tokenizer) {
  std::string result;
  std::size_t copied = 0;
  const std::string_view all = text;
  for (const TextRange& range : tokenizer.find_special_tokens(text)) {
    append_escaped(result, all.substr(copied, range.begin - copied));
    result.append(kBegin).append(all.substr(range.begin, range.end - range.begin)).append(kEnd);
    copied = range.end;
  }
  append_escaped(result, all.substr(copied));
  return result;
}

// All texts in a value, keys of objects too: templates write them where they show arguments.
Value marked(const Value& value, const Tokenizer& tokenizer) {
  if (const auto* text = value.as_text()) return Value::text(marked(text->bytes, tokenizer));
  if (const auto* list = value.as_list()) {
    std::vector<Value> items;
    for (const Value& item : list->items) items.push_back(marked(item, tokenizer));
    return Value::list(std::move(items));
  }
  const auto* dict = value.as_dict();
  if (dict == nullptr) return value;
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, element] : dict->entries) {
    entries.emplace_back(marked(key, tokenizer), marked(element, tokenizer));
  }
  return Value::dict(std::move(entries));
}

}  // namespace

ChatMessage mark_special_tokens(const ChatMessage& message, const Tokenizer& tokenizer) {
  ChatMessage result{message.role, marked(message.content, tokenizer), message.fields};
  if (message.fields.empty()) return result;
  const Value fields = jinja::parse_json_value(message.fields, "the fields of a message");
  result.fields = jinja::json_text(marked(fields, tokenizer));
  return result;
}

std::vector<std::int64_t> encode_marked(std::string_view rendered, const Tokenizer& tokenizer) {
  std::string text;
  std::vector<TextRange> literal;
  while (true) {
    const std::size_t begin = rendered.find(kBegin);
    text += rendered.substr(0, begin);
    if (begin == std::string_view::npos) break;
    rendered.remove_prefix(begin + kBegin.size());
    const bool mark = rendered.starts_with(kBegin) || rendered.starts_with(kEnd);
    const std::size_t end = rendered.find(kEnd, mark ? kBegin.size() : 0);
    check_value(end != std::string_view::npos && (!mark || end == kBegin.size()),
                "the chat template divides a message within a special token that it spells; this "
                "cannot be kept as text");
    if (!mark) literal.push_back({text.size(), text.size() + end});
    text += rendered.substr(0, end);
    rendered.remove_prefix(end + kEnd.size());
  }
  return tokenizer.encode(text, {.add_special_tokens = false, .literal = literal});
}

}  // namespace kvcache::detail
