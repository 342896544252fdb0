// Streaming: whole characters as soon as they are whole, and joined pieces equal to the full
// decode.
#include "kvcache/text/incremental_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "golden_files.h"
#include "kvcache/core/errors.h"
#include "tests/support/byte_tokenizer.h"

namespace kvcache::test {
namespace {

using testing::byte_tokenizer;

// The characters of well-formed UTF-8.
std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (const char byte : text) {
    if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) result.emplace_back();
    result.back().push_back(byte);
  }
  return result;
}

const char* const kTexts[] = {"你好，世界！没有空格的文字",
                              "日本語とEnglishと한국어",
                              "\U0001F600\U0001F44D\U0001F3FD\U0001F468\u200D\U0001F469",
                              "สวัสดีชาวโลก",
                              "naïve café e\u0301 Ångström",
                              "a\uFFFDb\uFFFD\uFFFD你",
                              "\uFFFD",
                              "the end。é\U0001F600!",
                              ""};

TEST(IncrementalDecoder, F48GivesEachCharacterAtItsLastByte) {
  const Tokenizer tokenizer = byte_tokenizer();
  for (const std::string text : kTexts) {
    IncrementalDecoder decoder(tokenizer);
    for (const auto& character : characters(text)) {
      for (std::size_t i = 0; i < character.size(); ++i) {
        const bool last = i + 1 == character.size();
        EXPECT_EQ(decoder.push(static_cast<unsigned char>(character[i])), last ? character : "");
      }
    }
    EXPECT_EQ(decoder.finish(), "");
  }
}

TEST(IncrementalDecoder, F48KeepsReplacementSignsAndGoesOn) {
  const Tokenizer tokenizer = byte_tokenizer();
  IncrementalDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(Ids{0xEF, 0xBF}), "");
  EXPECT_EQ(decoder.push(0xBD), "\uFFFD");
  EXPECT_EQ(decoder.push('x'), "x");
  EXPECT_EQ(decoder.push(0xFF), "\uFFFD");  // no byte of any character
  EXPECT_EQ(decoder.push(0xE4), "");        // begins a character
  EXPECT_EQ(decoder.push('y'), "\uFFFDy");  // that does not go on
  EXPECT_EQ(decoder.push(Ids{0xE4, 0xBD}), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_THROW(decoder.push('z'), RuntimeError);
}

TEST(IncrementalDecoder, SpecialTokensAreSkippedOnRequest) {
  const Tokenizer tokenizer = byte_tokenizer();
  const Ids ids = {'a', 0xC3, 256, 0xA9, 256};
  EXPECT_EQ(decode_stepwise(tokenizer, ids, {.skip_special_tokens = true}), "aé");
  EXPECT_EQ(decode_stepwise(tokenizer, ids), "a\uFFFD<end>\uFFFD<end>");
  EXPECT_EQ(tokenizer.decode(ids), "a\uFFFD<end>\uFFFD<end>");
}

TEST(IncrementalDecoder, UnknownIdLeavesTheStreamAsItWas) {
  const Tokenizer tokenizer = byte_tokenizer();
  IncrementalDecoder decoder(tokenizer);
  decoder.push(0xC3);
  EXPECT_THROW(decoder.push(Ids{'a', 257}), ValueError);
  EXPECT_THROW(decoder.push(-1), ValueError);
  EXPECT_EQ(decoder.push(0xA9), "é");
}

TEST(IncrementalDecoder, OutlivesItsTokenizer) {
  auto tokenizer = std::make_unique<Tokenizer>(byte_tokenizer());
  IncrementalDecoder decoder(*tokenizer);
  tokenizer.reset();
  EXPECT_EQ(decoder.push('a'), "a");
}

// Any ids, in any portions, also such as no text encodes to.
TEST(IncrementalDecoder, RandomIdsStreamToTheFullDecode) {
  std::mt19937 random(7);
  for (const char* name : {"smollm", "qwen", "llama3", "byte_fallback", "unknown", "flags",
                           "llama2", "mistral", "phi3", "gemma", "t5"}) {
    const Tokenizer tokenizer = golden_tokenizer(name);
    for (int round = 0; round < 200; ++round) {
      Ids ids(random() % 40);
      for (auto& id : ids) id = static_cast<std::int64_t>(random()) % tokenizer.vocab_size();
      const DecodeOptions options{.skip_special_tokens = round % 2 == 1};
      IncrementalDecoder decoder(tokenizer, options);
      std::string joined;
      for (std::size_t at = 0; at < ids.size();) {
        const auto count = std::min<std::size_t>(1 + random() % 3, ids.size() - at);
        joined += decoder.push(std::span(ids).subspan(at, count));
        at += count;
      }
      joined += decoder.finish();
      ASSERT_EQ(joined, tokenizer.decode(ids, options)) << name << ", round " << round;
    }
  }
}

TEST(IncrementalDecoder, StagesOfASentencePieceDecoderStreamToo) {
  const Tokenizer tokenizer = Tokenizer::from_file(text_goldens() / "byte_fallback/tokenizer.json");
  IncrementalDecoder decoder(tokenizer);
  const auto byte = [&](const char* token) { return tokenizer.token_to_id(token).value(); };
  EXPECT_EQ(decoder.push(byte("\u2581")), "");  // the space that begins a text is stripped
  EXPECT_EQ(decoder.push(byte("a")), "a");
  EXPECT_EQ(decoder.push(Ids{byte("<0xE4>"), byte("<0xBD>"), byte("<0xA0>")}), "");
  EXPECT_EQ(decoder.push(byte("\u2581")), "你 ");  // a run of bytes is certain at its end
  EXPECT_EQ(decoder.push(byte("<0xE4>")), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
}

}  // namespace
}  // namespace kvcache::test
