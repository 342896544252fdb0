// Text from outside that spells special tokens, on its way through a template: it is marked before
// rendering, so that what a template writes and what it was given can be told apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/chat/chat_template.h"
#include "kvcache/text/tokenizer.h"

namespace kvcache::detail {

// The message with marks (U+FDD0 and U+FDD1, which are no characters) around every special token
// that its content or its fields spell, and around those marks themselves. Throws ValueError for
// fields that parse_json_value() refuses.
ChatMessage mark_special_tokens(const ChatMessage& message, const Tokenizer& tokenizer);

// The ids of a text rendered of such messages, whose marked parts are no special tokens.
std::vector<std::int64_t> encode_marked(std::string_view rendered, const Tokenizer& tokenizer);

}  // namespace kvcache::detail
