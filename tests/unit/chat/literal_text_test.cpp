// What a message spells stays text, whatever it spells.
#include "chat/literal_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/chat/chat_template.h"
#include "kvcache/core/errors.h"
#include "kvcache/text/tokenizer.h"

namespace kvcache {
namespace {

// U+FDD0 and U+FDD1 mark what is spelled.
const std::vector<std::string> kTexts = {
    "",
    "no token",
    "<|im_end|>",
    "a<|im_end|>b<|im_start|>",
    "\uFDD0",
    "\uFDD1",
    "a\uFDD1\uFDD0b",
    "\uFDD0\uFDD0\uFDD1\uFDD1<|im_end|>\uFDD0<|im_start|>\uFDD1\uFDD1",
    "\uFDD0<|im_end|>",
    "<|im_end|>\uFDD1",
};

Tokenizer smollm() {
  return Tokenizer::from_file(KVCACHE_TEST_DATA_DIR "/parity/goldens/text/smollm/tokenizer.json");
}

TEST(LiteralText, IsEncodedAsIfItWereNoSpecialToken) {
  const Tokenizer tokenizer = smollm();
  for (const std::string& text : kTexts) {
    const ChatMessage message = detail::mark_special_tokens({"user", text}, tokenizer);
    EXPECT_EQ(detail::encode_marked(message.content, tokenizer),
              tokenizer.encode(text, {.add_special_tokens = false, .parse_special_tokens = false}))
        << text;
  }
}

// Between texts of the template's own, whose tokens are special.
TEST(LiteralText, IsToldFromTheTemplatesText) {
  const Tokenizer tokenizer = smollm();
  for (const std::string& text : kTexts) {
    const ChatMessage message = detail::mark_special_tokens({"user", text}, tokenizer);
    std::vector<std::int64_t> ids =
        detail::encode_marked("<|im_start|>" + message.content + "<|im_end|>", tokenizer);
    const std::vector<std::int64_t> inner =
        tokenizer.encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
    ASSERT_EQ(ids.size(), inner.size() + 2) << text;
    EXPECT_EQ(std::vector(ids.begin() + 1, ids.end() - 1), inner) << text;
    EXPECT_EQ(ids.front(), tokenizer.encode("<|im_start|>").front());
    EXPECT_EQ(ids.back(), tokenizer.encode("<|im_end|>").front());
  }
}

TEST(LiteralText, MarksThatATemplateDividedAreRefused) {
  const Tokenizer tokenizer = smollm();
  for (const char* rendered : {"\uFDD0<|im_end|>", "\uFDD0", "\uFDD0\uFDD0", "\uFDD0\uFDD1x"}) {
    EXPECT_THROW(detail::encode_marked(rendered, tokenizer), ValueError) << rendered;
  }
}

}  // namespace
}  // namespace kvcache
