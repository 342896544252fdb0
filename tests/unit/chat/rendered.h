// Short ways to render a template in a test.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/chat/chat_template.h"
#include "kvcache/core/errors.h"

namespace kvcache {

// The template with `variables` (a JSON object) and one message, user: "Hi".
inline std::string rendered(std::string_view source, std::string variables = {},
                            ChatTemplateLimits limits = {}) {
  ChatTemplateOptions options;
  options.variables = std::move(variables);
  options.limits = limits;
  const ChatMessage message{"user", "Hi", {}};
  return ChatTemplate::from_string(source).render({&message, 1}, options);
}

// The message of the ValueError that the template ends in, or the beginning of its text.
inline std::string outcome(std::string_view source, ChatTemplateLimits limits = {},
                           std::string variables = {}) {
  try {
    return "rendered: " + rendered(source, std::move(variables), limits).substr(0, 200);
  } catch (const ValueError& error) {
    return error.what();
  }
}

}  // namespace kvcache
