// Messages on their way into a template, as apply_chat_template prepares them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "chat/value.h"
#include "kvcache/chat/chat_template.h"

namespace kvcache::detail {

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
