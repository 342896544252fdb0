// Messages on their way into a template, as apply_chat_template prepares them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "chat/value.h"
#include "kvcache/chat/chat_template.h"

namespace kvcache::detail {

// A message as one object: its fields over its role and content. Throws ValueError, about
// messages[index], where a text is no UTF-8 or the fields are none that parse_json_value() takes.
jinja::Value make_message(const ChatMessage& message, std::size_t index);

// Throws ValueError where there is no such object, or no role in it: a file of messages could not
// be read back.
void check_message(const ChatMessage& message, std::size_t index);

// The list of messages that a template sees. Throws ValueError where one is no object.
jinja::Value make_conversation(std::span<const ChatMessage> messages);
jinja::Value make_conversation(std::string_view json);

// Marks where the last message ends, so that the rendered text can be cut there.
class FinalMessage {
 public:
  // Puts the mark into the messages. Throws ValueError where the last one has no such field, or the
  // template never reads it.
  FinalMessage(jinja::Value& messages, const std::string& field, std::string_view source);

  // The text up to the mark. Throws ValueError where the template dropped the message.
  std::string cut(const std::string& rendered) const;

 private:
  std::string content_;
};

}  // namespace kvcache::detail
