// Short ways to render a template in a test.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/chat/chat_template.h"

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

}  // namespace kvcache
