// The static caches that a Runner keeps between calls: used again, replaced by larger ones, and
// never touched while a caller holds them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using testing::ids_tensor;

const at::Tensor kPrompt = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}});
const at::Tensor kOther = ids_tensor({{5, 6, 30, 31, 32, 33, 34, 35, 36}});
const at::Tensor kLonger = ids_tensor({{40, 6, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}});

GenerationConfig fixed(std::int64_t new_tokens) {
  return {.max_new_tokens = new_tokens, .cache_implementation = "static", .pad_token_id = 0};
}

at::Tensor uncached(const LanguageModel& model, const Inputs& inputs, std::int64_t new_tokens) {
  return generate(model, inputs, {.max_new_tokens = new_tokens, .use_cache = false}).sequences;
}

// What the runner makes of a prompt is what there is without a cache. Its cache, no longer held.
std::weak_ptr<Cache> run(Runner& runner, const LanguageModel& model, const Inputs& inputs,
                         std::int64_t new_tokens) {
  const Output output = runner.generate(inputs, fixed(new_tokens));
  EXPECT_TRUE(output.sequences.equal(uncached(model, inputs, new_tokens)));
  const at::Tensor& ids = output.sequences;
  EXPECT_EQ(output.cache->get_seq_length(), ids.size(1) - 1);
  return output.cache;
}

// Whether two pointers are to one cache, also where it is gone.
bool same(const std::weak_ptr<Cache>& a, const std::weak_ptr<Cache>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

// The keys' buffer of the first layer; while this is held, no other one gets its address.
at::Tensor buffer_of(const Output& output) {
  return testing::buffers(dynamic_cast<LayeredCache&>(*output.cache))[0].keys;
}

TEST(KeptCaches, F16AnotherPromptBeginsAnew) {
  for (const char* name : {"llama", "mistral", "qwen3_sliding", "lfm2", "jamba", "llama4_text"}) {
    SCOPED_TRACE(name);
    const CausalLM& model = testing::checkpoint(name);
    Runner runner(model);
    const std::weak_ptr<Cache> first = run(runner, model, {.input_ids = kPrompt}, 3);
    EXPECT_TRUE(same(run(runner, model, {.input_ids = kPrompt}, 3), first));
    EXPECT_TRUE(same(run(runner, model, {.input_ids = kOther}, 3), first));
    run(runner, model, {.input_ids = kLonger}, 12);
    run(runner, model, {.input_ids = kPrompt}, 2);
  }
}

TEST(KeptCaches, BuffersStayUntilTheyAreTooSmall) {
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  const auto made = [&](const at::Tensor& ids, std::int64_t new_tokens) {
    const Output output = runner.generate({.input_ids = ids}, fixed(new_tokens));
    return std::pair(buffer_of(output), output.cache->capacity().value());
  };
  const auto [first, room] = made(kPrompt, 8);
  EXPECT_EQ(room, 16);
  EXPECT_TRUE(made(kOther, 8).first.is_alias_of(first));
  EXPECT_TRUE(made(kLonger, 5).first.is_alias_of(first));
  const auto [larger, more_room] = made(kLonger, 6);
  EXPECT_EQ(more_room, 17);
  EXPECT_TRUE(made(kPrompt, 3).first.is_alias_of(larger));
}

TEST(KeptCaches, MaxCacheLenHasRoomForLaterCalls) {
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  GenerationConfig config = fixed(3);
  config.max_cache_len = 40;
  const at::Tensor first = buffer_of(runner.generate({.input_ids = kPrompt}, config));
  config.max_new_tokens = 29;
  EXPECT_TRUE(buffer_of(runner.generate({.input_ids = kLonger}, config)).is_alias_of(first));
  config.max_new_tokens = 30;
  EXPECT_EQ(runner.generate({.input_ids = kLonger}, config).cache->capacity(), 41);
}

TEST(KeptCaches, AHeldCacheStaysAsItIs) {
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  GenerationConfig with_room = fixed(3);
  with_room.max_cache_len = 12;
  const Output first = runner.generate({.input_ids = kPrompt}, with_room);
  auto& cache = dynamic_cast<LayeredCache&>(*first.cache);
  const at::Tensor before = testing::buffers(cache)[0].keys.clone();
  const Output second = runner.generate({.input_ids = kOther}, fixed(3));
  const Output third = runner.generate({.input_ids = kOther}, fixed(3));
  EXPECT_NE(second.cache, first.cache);
  EXPECT_NE(third.cache, first.cache);
  EXPECT_NE(third.cache, second.cache);
  EXPECT_EQ(cache.get_seq_length(), 11);
  EXPECT_TRUE(testing::buffers(cache)[0].keys.equal(before));
  // It can be gone on with.
  const Output more =
      runner.generate({.input_ids = first.sequences}, {.max_new_tokens = 1}, first.cache.get());
  EXPECT_TRUE(more.sequences.equal(uncached(model, {.input_ids = kPrompt}, 4)));
}

TEST(KeptCaches, TheRunnerKeepsTwo) {
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  std::weak_ptr<Cache> first, second, third;
  {
    const Output one = runner.generate({.input_ids = kPrompt}, fixed(3));
    const Output two = runner.generate({.input_ids = kPrompt}, fixed(3));
    const Output three = runner.generate({.input_ids = kPrompt}, fixed(3));
    first = one.cache, second = two.cache, third = three.cache;
  }
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(second.expired());
  EXPECT_FALSE(third.expired());
  run(runner, model, {.input_ids = kLonger}, 12);  // neither has room: one larger instead of both
  EXPECT_TRUE(second.expired());
  EXPECT_TRUE(third.expired());
}

TEST(KeptCaches, TheLastAnswerMayBeHeldWhileTheNextIsMade) {
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  Output output = runner.generate({.input_ids = kPrompt}, fixed(3));
  const Cache* first = output.cache.get();
  output = runner.generate({.input_ids = kOther}, fixed(3));
  const Cache* second = output.cache.get();
  EXPECT_NE(second, first);
  output = runner.generate({.input_ids = kPrompt}, fixed(3));
  EXPECT_EQ(output.cache.get(), first);
  output = runner.generate({.input_ids = kPrompt}, fixed(3));
  EXPECT_EQ(output.cache.get(), second);
}

TEST(KeptCaches, OtherNumbersOfRows) {
  const auto model = testing::tiny_model("mixed");
  Runner runner(*model);
  const Inputs two{.input_ids = at::cat({kPrompt, kOther})};
  const std::weak_ptr<Cache> first = run(runner, *model, {.input_ids = kPrompt}, 4);
  EXPECT_TRUE(same(run(runner, *model, two, 4), first));
  EXPECT_TRUE(same(run(runner, *model, {.input_ids = kOther}, 4), first));
}

TEST(KeptCaches, ContentMovedAwayByItsHolderIsNotMissed) {
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  Output output = runner.generate({.input_ids = kPrompt}, fixed(3));
  const StaticCache mine = std::move(dynamic_cast<StaticCache&>(*output.cache));
  output = {};
  run(runner, model, {.input_ids = kOther}, 3);
  EXPECT_EQ(mine.get_seq_length(), 11);
}

TEST(KeptCaches, ACallThatFailedLeavesNothingBehind) {
  class Fails final : public Streamer {
    void put(const at::Tensor& /*tokens*/) override { throw std::runtime_error("enough"); }
  };
  const CausalLM& model = testing::checkpoint("llama");
  Runner runner(model);
  Fails streamer;
  EXPECT_THROW(runner.generate({.input_ids = kPrompt, .streamer = &streamer}, fixed(3)),
               std::runtime_error);
  run(runner, model, {.input_ids = kOther}, 3);
}

TEST(KeptCaches, OfAnEncoderAndADecoder) {
  const LanguageModel& model = testing::seq2seq_checkpoint("t5");
  Runner runner(model);
  const Inputs longer{.input_ids = kLonger};
  const std::weak_ptr<Cache> first = run(runner, model, {.input_ids = kPrompt}, 4);
  EXPECT_TRUE(same(run(runner, model, {.input_ids = kOther.narrow(1, 0, 5)}, 4), first));
  const Output larger = runner.generate(longer, fixed(4));
  EXPECT_TRUE(larger.sequences.equal(uncached(model, longer, 4)));
  EXPECT_EQ(dynamic_cast<EncoderDecoderCache&>(*larger.cache).cross_attention_cache().capacity(),
            12);
  EXPECT_EQ(generate(model, longer, fixed(4)).cache->kind(), "encoder_decoder");
}

}  // namespace
}  // namespace kvcache
