// Pulling a real model's text out of generate(), piece by piece.
#include "kvcache/generation/text_stream.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/chat/tokenizer_text.h"
#include "kvcache/generation/runner.h"
#include "tests/support/char_tokenizer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/ended_rows.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

class StreamOfGenerate : public ::testing::Test {
 protected:
  TextStream stream(const GenerationConfig& config, Cache* cache = nullptr) const {
    return {running_text(tokenizer_), [this, config, cache](Streamer& streamer) {
              return generate(
                  model_,
                  {.input_ids = prompt_, .text = running_text(tokenizer_), .streamer = &streamer},
                  config, cache);
            }};
  }

  Output plain(const GenerationConfig& config) const {
    return generate(model_, {.input_ids = prompt_, .text = running_text(tokenizer_)}, config);
  }

  // What comes after the prompt.
  std::string new_text(const at::Tensor& sequences) const {
    const std::int64_t begin = prompt_.size(1);
    return tokenizer_.decode(
        testing::numbers_of(sequences[0].narrow(0, begin, sequences.size(1) - begin)));
  }

  const Tokenizer tokenizer_ = testing::char_tokenizer();
  const LanguageModel& model_ = testing::checkpoint("llama");
  const at::Tensor prompt_ = testing::ids_tensor({tokenizer_.encode("what is th")});
};

TEST_F(StreamOfGenerate, GivesTheTextAPieceAToken) {
  const GenerationConfig config{.max_new_tokens = 20};
  const Output expected = plain(config);
  DynamicCache cache(model_.config());
  TextStream pieces = stream(config, &cache);
  std::string text;
  std::int64_t count = 0;
  for (const std::string& piece : pieces) {
    EXPECT_FALSE(piece.empty());
    text += piece;
    ++count;
  }
  EXPECT_EQ(text, new_text(expected.sequences));
  EXPECT_EQ(count, 20);
  EXPECT_TRUE(pieces.output().sequences.equal(expected.sequences));
  EXPECT_EQ(cache.get_seq_length(), prompt_.size(1) + 19);
}

// Drafts and a stop string within the text come out as they do without a stream.
TEST_F(StreamOfGenerate, F49EndsAtAStopString) {
  GenerationConfig config{.max_new_tokens = 20};
  const std::string free = new_text(plain(config).sequences);
  config.stop_strings = {{free.substr(4, 2)}};
  config.prompt_lookup_num_tokens = 4;
  const Output expected = plain(config);
  ASSERT_LT(expected.sequences.size(1), prompt_.size(1) + 20);
  TextStream pieces = stream(config);
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  EXPECT_EQ(text, new_text(expected.sequences));
  EXPECT_TRUE(text.ends_with(free.substr(4, 2))) << text;
  EXPECT_TRUE(pieces.output().sequences.equal(expected.sequences));
}

TEST_F(StreamOfGenerate, LeavesAWholeCacheWhereNobodyPullsTheRest) {
  const GenerationConfig config{.max_new_tokens = 100};
  const at::Tensor expected = plain(config).sequences;
  DynamicCache cache(model_.config());
  {
    TextStream pieces = stream(config, &cache);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(pieces.next());
  }
  const std::int64_t held = cache.get_seq_length();
  EXPECT_GE(held, prompt_.size(1) + 2);
  EXPECT_TRUE(cache.history().ids().equal(expected.narrow(1, 0, held)));
  const std::int64_t left = expected.size(1) - held - 1;
  if (left == 0) return;  // it was quicker
  const at::Tensor text = expected.narrow(1, 0, held + 1);
  EXPECT_TRUE(generate(model_, {.input_ids = text}, {.max_new_tokens = left}, &cache)
                  .sequences.equal(expected));
}

TEST_F(StreamOfGenerate, ThrowsWhatGenerateThrows) {
  TextStream pieces = stream({.max_new_tokens = 5, .num_beams = 2});
  EXPECT_THAT(refusal<ValueError>([&] { pieces.next(); }), HasSubstr("streamer"));
}

}  // namespace
}  // namespace kvcache
