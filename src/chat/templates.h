// The compiled templates of a checkpoint and the special tokens that they see.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "chat/statements.h"
#include "kvcache/chat/chat_template.h"

namespace kvcache::detail {

class ChatTemplates {
 public:
  struct Compiled {
    std::string source;
    jinja::Block block;
    std::string error;  // why it could not be compiled; empty: it could
  };

  // Throws ValueError where a template that is the only one has an error.
  ChatTemplates(const std::map<std::string, std::string>& sources,
                ChatTemplate::SpecialTokens special_tokens);

  // Throws ValueError where there is none of the name, or it could not be compiled.
  const Compiled& find(const std::string& name, bool has_tools) const;
  const ChatTemplate::SpecialTokens& special_tokens() const { return special_tokens_; }

 private:
  std::map<std::string, Compiled> templates_;
  ChatTemplate::SpecialTokens special_tokens_;
};

// Reads a checkpoint's folder; see ChatTemplate::from_folder.
std::shared_ptr<const ChatTemplates> read_chat_templates(const std::filesystem::path& folder);

}  // namespace kvcache::detail
