// Streaming and stop strings with a real tokenizer: characters divided over tokens.
#include "kvcache/chat/tokenizer_text.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/stop_string_criteria.h"
#include "kvcache/generation/text_stream.h"
#include "kvcache/generation/text_streamer.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::byte_tokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

std::vector<std::int64_t> bytes_of(std::string_view text) {
  std::vector<std::int64_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

void put(Streamer& streamer, std::string_view text) {
  for (const std::int64_t id : bytes_of(text)) streamer.put(at::full({1}, id, at::kLong));
}

TEST(TextStreamer, F48HandsOnWholeCharactersAtOnce) {
  std::vector<std::string> pieces;
  TextStreamer streamer(running_text(byte_tokenizer()),
                        [&](std::string_view piece) { pieces.emplace_back(piece); });
  put(streamer, "a你");
  EXPECT_THAT(pieces, ElementsAre("a", "你"));
  put(streamer, "\xE4\xBD");
  EXPECT_EQ(pieces.size(), 2);
  streamer.end();
  EXPECT_THAT(pieces, ElementsAre("a", "你", "\uFFFD"));
}

TEST(TextStreamer, ServesOneTextAfterTheOther) {
  std::string all;
  TextStreamer streamer(running_text(byte_tokenizer()),
                        [&](std::string_view piece) { all += piece; });
  put(streamer, "one\xE4");
  streamer.end();
  put(streamer, "\xBD");  // goes on with nothing of the text before
  streamer.end();
  streamer.end();
  EXPECT_EQ(all, "one\uFFFD\uFFFD");
}

TEST(TextStreamer, SkipsSpecialTokensWhereAsked) {
  std::string all;
  TextStreamer streamer(running_text(byte_tokenizer(), {.skip_special_tokens = true}),
                        [&](std::string_view piece) { all += piece; });
  put(streamer, "a");
  streamer.put(at::full({1}, 256, at::kLong));
  streamer.end();
  EXPECT_EQ(all, "a");
}

TEST(TextStreamer, LeavesOutEndTokens) {
  std::string all;
  TextStreamer streamer(running_text(byte_tokenizer()),
                        [&](std::string_view piece) { all += piece; }, {256, 'x'});
  put(streamer, "axb");
  streamer.put(at::full({1}, 256, at::kLong));
  streamer.end();
  EXPECT_EQ(all, "ab");
}

TEST(TextStreamer, RefusesABatchAndEmptyFunctions) {
  TextStreamer streamer(running_text(byte_tokenizer()), [](std::string_view) {});
  EXPECT_THAT(refusal<ValueError>([&] { streamer.put(at::ones({2}, at::kLong)); }),
              HasSubstr("CallbackStreamer"));
  EXPECT_THAT(refusal<ValueError>([] { TextStreamer(nullptr, [](std::string_view) {}); }),
              HasSubstr("function"));
}

TEST(StopStrings, F47ACharacterDividedOverTokensCountsWithItsLast) {
  StopStringCriteria criteria({"你"}, running_text(byte_tokenizer()));
  std::vector<bool> complete;
  std::vector<std::int64_t> ids = {'x'};
  for (const std::int64_t id : bytes_of("a你b")) {
    ids.push_back(id);
    complete.push_back(criteria.complete({testing::ids_tensor({ids})})[0].item<bool>());
  }
  EXPECT_THAT(complete, ElementsAre(false, false, false, true, false));
}

// Which bytes of a text complete a stop string, counted from 1; the texts are of bytes alone.
TEST(StopStrings, F47ByteByByte) {
  const auto ends = [](const std::string& stop, std::string_view text) {
    StopStringCriteria criteria({stop}, running_text(byte_tokenizer()));
    std::vector<std::int64_t> ids = {'x'};
    std::vector<std::size_t> complete;
    for (const std::int64_t id : bytes_of(text)) {
      ids.push_back(id);
      if (criteria.complete({testing::ids_tensor({ids})})[0].item<bool>()) {
        complete.push_back(ids.size() - 1);
      }
    }
    return complete;
  };
  EXPECT_THAT(ends("end", "the end!"), ElementsAre(7));  // not at what comes after it
  EXPECT_THAT(ends("d", "the end"), ElementsAre(7));
  EXPECT_THAT(ends("。", "a。b"), ElementsAre(4));
  EXPECT_THAT(ends("é", "caf\u00E9"), ElementsAre(5));
  EXPECT_THAT(ends("\U0001F600", "\U0001F600!"), ElementsAre(4));
  // Characters that begin with the same bytes.
  EXPECT_THAT(ends("。", "、〇"), ElementsAre());
  EXPECT_THAT(ends("é", "\u00E8\u00EA"), ElementsAre());
  EXPECT_THAT(ends("\U0001F600", "\U0001F601\U0001F44D"), ElementsAre());
}

// Puts a text's bytes as generate() would.
TextStream::Call making(std::string text) {
  return [text = std::move(text)](Streamer& streamer) {
    put(streamer, text);
    streamer.end();
    return Output{.sequences = at::full({1, 1}, 7, at::kLong)};
  };
}

TEST(TextStream, GivesPiecesInOrderAndThenTheOutput) {
  TextStream stream(running_text(byte_tokenizer()), making("a你!"));
  std::vector<std::string> pieces;
  for (const std::string& piece : stream) pieces.push_back(piece);
  EXPECT_THAT(pieces, ElementsAre("a", "你", "!"));
  EXPECT_EQ(stream.next(), std::nullopt);
  EXPECT_EQ(stream.output().sequences.item<std::int64_t>(), 7);
  EXPECT_THAT(refusal<RuntimeError>([&] { stream.output(); }), HasSubstr("taken before"));
}

TEST(TextStream, ThrowsWhatTheCallThrewBehindItsPieces) {
  TextStream stream(running_text(byte_tokenizer()), [](Streamer& streamer) -> Output {
    put(streamer, "ab");
    throw ValueError("out of words");
  });
  EXPECT_EQ(stream.next(), "a");
  EXPECT_EQ(stream.next(), "b");
  EXPECT_EQ(refusal<ValueError>([&] { stream.next(); }), "out of words");
  EXPECT_EQ(refusal<ValueError>([&] { stream.output(); }), "out of words");
}

// The call goes on for ever but for the stream's end.
TEST(TextStream, StopsAtTheNextTokenWhenItGoes) {
  std::promise<void> ended;
  {
    TextStream stream(running_text(byte_tokenizer()), [&](Streamer& streamer) -> Output {
      try {
        while (true) put(streamer, "x");
      } catch (...) {
        ended.set_value();
        throw;
      }
    });
    EXPECT_EQ(stream.next(), "x");
  }
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST(TextStream, RefusesEmptyFunctions) {
  EXPECT_THAT(refusal<ValueError>([] { TextStream(nullptr, making("")); }), HasSubstr("function"));
  EXPECT_THAT(
      refusal<ValueError>([] { TextStream(running_text(byte_tokenizer()), TextStream::Call()); }),
      HasSubstr("function"));
}

}  // namespace
}  // namespace kvcache
