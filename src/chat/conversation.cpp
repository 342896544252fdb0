#include "chat/conversation.h"

#include <algorithm>
#include <array>

#include "chat/code_points.h"
#include "chat/json_values.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {

namespace {

using jinja::Dict;
using jinja::Side;
using jinja::strip;
using jinja::Text;
using jinja::Value;
using Entries = std::vector<std::pair<Value, Value>>;

// Ends in a space: templates that strip the message strip it too, and then it is looked for
// without.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::array<std::string_view, 3> kReasoningFields = {"reasoning_content", "thinking",
                                                              "reasoning"};

Value checked_text(const std::string& bytes, std::size_t index, std::string_view field) {
  const auto invalid = find_invalid_utf8(bytes);
  check_value(invalid == std::string::npos, "messages[", index, "].", field,
              " is no UTF-8 at byte ", invalid);
  return Value::text(bytes);
}

// Without the fields that are null, and with reasoning under the names that templates read. (Keys
// of a dict differ, so that few are looked for: a message may have as many as a file holds.)
Value prepared(const Value& message, std::size_t index) {
  const Dict* dict = message.as_dict();
  check_value(dict, "messages[", index, "] is no object");
  Entries entries;
  const Value* reasoning = nullptr;
  for (const auto field : kReasoningFields) {
    const Value* value = dict->find(field);
    if (value && !value->is_none() && !reasoning) reasoning = value;
  }
  if (reasoning) entries.emplace_back(Value::text("thinking"), *reasoning);
  for (const auto& [key, value] : dict->entries) {
    if (value.is_none()) continue;
    if (reasoning && key.as_text()->bytes == "thinking") {
      entries.front().second = value;
    } else {
      entries.emplace_back(key, value);
    }
  }
  if (reasoning) put(entries, Value::text("reasoning_content"), *reasoning);
  return Value::dict(std::move(entries));
}

Value prepared_list(const std::vector<Value>& messages) {
  check_value(!messages.empty(),
              "a chat template cannot be applied to an empty conversation; give at least one "
              "message");
  std::vector<Value> items;
  for (std::size_t i = 0; i < messages.size(); ++i) items.push_back(prepared(messages[i], i));
  return Value::list(std::move(items));
}

Value with_entry(const Dict& dict, std::string_view key, Value value) {
  Entries entries = dict.entries;
  put(entries, Value::text(std::string(key)), std::move(value));
  return Value::dict(std::move(entries));
}

Value marked(const Text& text) { return Value::text(text.bytes + std::string(kMark)); }

// The parts of a content with the last text marked, which goes to `content`.
Value marked_parts(const jinja::List& parts, std::string& content) {
  std::vector<Value> items = parts.items;
  for (std::size_t i = items.size(); i-- > 0;) {
    const Dict* part = items[i].as_dict();
    const Value* text = part ? part->find("text") : nullptr;
    if (!text || !text->as_text()) continue;
    content = text->as_text()->bytes;
    items[i] = with_entry(*part, "text", marked(*text->as_text()));
    return Value::list(std::move(items));
  }
  throw ValueError("continue_final_message: the final message has no text to go on with");
}

}  // namespace

Value make_message(const ChatMessage& message, std::size_t index) {
  Entries entries;
  entries.emplace_back(Value::text("role"), checked_text(message.role, index, "role"));
  entries.emplace_back(Value::text("content"), checked_text(message.content, index, "content"));
  if (message.fields.empty()) return Value::dict(std::move(entries));
  const std::string name = c10::str("messages[", index, "].fields");
  const Value fields = jinja::parse_json_value(message.fields, name);
  check_value(fields.as_dict(), name, " is no JSON object");
  for (const auto& [key, value] : fields.as_dict()->entries) {
    const std::string& field = key.as_text()->bytes;
    if (field == "role" || field == "content") {
      entries[field == "role" ? 0 : 1].second = value;
    } else {
      entries.emplace_back(key, value);
    }
  }
  return Value::dict(std::move(entries));
}

void check_message(const ChatMessage& message, std::size_t index) {
  const Value made = make_message(message, index);
  const Text* role = made.as_dict()->find("role")->as_text();
  check_value(role && !role->bytes.empty(), "messages[", index,
              "] has no role; it must be a text that is not empty, such as \"user\"");
}

Value make_conversation(std::span<const ChatMessage> messages) {
  std::vector<Value> items;
  for (std::size_t i = 0; i < messages.size(); ++i) items.push_back(make_message(messages[i], i));
  return prepared_list(items);
}

Value make_conversation(std::string_view json) {
  const Value messages = jinja::parse_json_value(json, "the list of messages");
  check_value(messages.as_list(), "the list of messages must be a JSON array of objects");
  return prepared_list(messages.as_list()->items);
}

FinalMessage::FinalMessage(Value& messages, const std::string& field, std::string_view source) {
  std::vector<Value> items = messages.as_list()->items;
  const Value last = items.back();
  const Value* content = last.as_dict()->find(std::string_view(field));
  check_value(content, "continue_final_message: the final message has no \"", field,
              "\" to go on with");
  // Reasoning stands under several names; the template reads one of them.
  std::vector<std::string> fields = {field};
  if (std::find(kReasoningFields.begin(), kReasoningFields.end(), field) !=
      kReasoningFields.end()) {
    fields.clear();
    for (const auto other : kReasoningFields) {
      const Value* copy = last.as_dict()->find(other);
      if (copy && equal(*copy, *content)) fields.emplace_back(other);
    }
  }
  const bool read = std::any_of(fields.begin(), fields.end(), [&](const auto& name) {
    return source.find(name) != std::string_view::npos;
  });
  check_value(read, "continue_final_message: the template reads no \"", field, "\"");
  const Value kept = *content;
  for (const auto& name : fields) {
    const Text* text = kept.as_text();
    check_value(text || kept.as_list(), "continue_final_message: the final message's \"", name,
                "\" is no text");
    if (text) content_ = text->bytes;
    Value changed = text ? marked(*text) : marked_parts(*kept.as_list(), content_);
    items.back() = with_entry(*items.back().as_dict(), name, std::move(changed));
  }
  messages = Value::list(std::move(items));
}

std::string FinalMessage::cut(const std::string& rendered) const {
  const auto bare_mark = strip(kMark, Side::kBoth);
  const auto at = rendered.rfind(bare_mark);
  const bool whole =
      at != std::string::npos && rendered.find(strip(content_, Side::kBoth)) != std::string::npos;
  check_value(whole,
              "continue_final_message: the final message does not appear in the rendered chat; the "
              "template drops or changes it");
  const std::string before = rendered.substr(0, at);
  // Where the space went, the message's own white space at its end went too.
  if (rendered.compare(at, kMark.size(), kMark) == 0) return before;
  return std::string(strip(before, Side::kRight));
}

}  // namespace kvcache::detail
