// A cache passed to generate(): what is kept of it, what is taken back, what is refused. Every
// answer must be the one without a cache. Numbers are those of the known faults.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;
using testing::Rows;

const Rows kPrompt = {{5, 6, 7, 8, 9, 10, 11, 7, 8}};

at::Tensor prompt() { return ids_tensor(kPrompt); }

// A model, a way to choose tokens, a kind of cache.
class CacheReuse : public ::testing::TestWithParam<std::tuple<const char*, bool, const char*>> {
 protected:
  const CausalLM& model() const { return testing::checkpoint(std::get<0>(GetParam())); }

  GenerationConfig config(std::int64_t new_tokens) const {
    return {.max_new_tokens = new_tokens,
            .do_sample = std::get<1>(GetParam()),
            .top_k = 0,
            .pad_token_id = 0};
  }

  std::unique_ptr<Cache> new_cache() const {
    if (std::get<2>(GetParam()) == std::string("Dynamic")) {
      return std::make_unique<DynamicCache>(model().config());
    }
    return std::make_unique<StaticCache>(model().config(), StaticCacheOptions{.max_cache_len = 20});
  }

  Output run(Inputs inputs, const GenerationConfig& config, Cache* cache) const {
    inputs.generator = make_generator(7);
    return generate(model(), inputs, config, cache);
  }

  // The new tokens after `ids` without any cache, [rows, new_tokens].
  at::Tensor expected(const at::Tensor& ids, std::int64_t new_tokens) const {
    GenerationConfig uncached = config(new_tokens);
    uncached.use_cache = false;
    const Output output = run({.input_ids = ids}, uncached, nullptr);
    return output.sequences.narrow(1, ids.size(1), new_tokens);
  }

  void fill(Cache& cache, const at::Tensor& ids) const {
    model().forward({.input_ids = ids}, &cache);
  }

  // Of the prompt's tokens `same` are those that `cache` has seen; it can keep as many of them as
  // crop can go back to, and full layers all.
  void expect_reusable(Cache& cache, const at::Tensor& ids, std::int64_t same) const {
    const std::int64_t seen = cache.get_seq_length();
    std::int64_t reusable = same;
    while (reusable > 0 && !cache.can_crop(seen - reusable)) --reusable;
    EXPECT_EQ(cache.can_reuse(ids.narrow(1, 0, ids.size(1) - 1)), reusable);
    const bool full = std::get<0>(GetParam()) == std::string("llama");
    EXPECT_TRUE(!full || reusable == same) << reusable;
  }

  // generate() of `inputs` on `cache` makes what follows `text` without a cache, and computes no
  // token that the cache can keep.
  Output check(Cache& cache, const Inputs& inputs, const at::Tensor& text,
               std::int64_t new_tokens) const {
    const bool whole = inputs.input_ids.size(1) == text.size(1) && !inputs.continuation;
    const std::int64_t reusable = whole ? cache.can_reuse(text.narrow(1, 0, text.size(1) - 1)) : 0;
    Output output = run(inputs, config(new_tokens), &cache);
    EXPECT_EQ(output.timings.prefill_tokens, inputs.input_ids.size(1) - reusable);
    const at::Tensor made = output.sequences.narrow(1, inputs.input_ids.size(1), new_tokens);
    const at::Tensor right = expected(text, new_tokens);
    EXPECT_TRUE(made.equal(right)) << made << right;
    EXPECT_EQ(cache.get_seq_length(), text.size(1) + new_tokens - 1);
    return output;
  }
};

TEST_P(CacheReuse, F16TheSameCallTwiceOnOneCache) {
  const auto made = new_cache();
  Cache& cache = *made;
  check(cache, {.input_ids = prompt()}, prompt(), 6);
  check(cache, {.input_ids = prompt()}, prompt(), 6);
}

TEST_P(CacheReuse, F16AnotherPromptOnAUsedCache) {
  const auto made = new_cache();
  Cache& cache = *made;
  check(cache, {.input_ids = prompt()}, prompt(), 3);
  const at::Tensor other = ids_tensor({{12, 13, 14, 20, 21, 22, 23, 24, 25}});
  check(cache, {.input_ids = other}, other, 3);
}

TEST_P(CacheReuse, F22TheCacheHoldsTheWholePrompt) {
  const auto made = new_cache();
  Cache& cache = *made;
  fill(cache, prompt());
  expect_reusable(cache, prompt(), 8);
  check(cache, {.input_ids = prompt()}, prompt(), 3);
  EXPECT_EQ(cache.get_seq_length(), 11);
}

TEST_P(CacheReuse, F23TheCacheIsLongerThanThePrompt) {
  const auto made = new_cache();
  Cache& cache = *made;
  fill(cache, prompt());
  const at::Tensor shorter = prompt().narrow(1, 0, 5);
  expect_reusable(cache, shorter, 4);
  check(cache, {.input_ids = shorter}, shorter, 3);
  EXPECT_EQ(cache.get_seq_length(), 7);
}

TEST_P(CacheReuse, F24OnlyNewTokensDeclaredAsAContinuation) {
  for (const std::int64_t cached : {2, 8}) {
    const auto made = new_cache();
    Cache& cache = *made;
    fill(cache, prompt().narrow(1, 0, cached));
    const at::Tensor rest = prompt().narrow(1, cached, 9 - cached);
    check(cache, {.input_ids = rest, .continuation = true}, prompt(), 3);
    EXPECT_EQ(cache.get_seq_length(), 11);
  }
}

TEST_P(CacheReuse, F24OnlyNewTokensWithAMaskOfTheFullLength) {
  for (const std::int64_t cached : {2, 8}) {
    const auto made = new_cache();
    Cache& cache = *made;
    fill(cache, prompt().narrow(1, 0, cached));
    const at::Tensor rest = prompt().narrow(1, cached, 9 - cached);
    check(cache, {.input_ids = rest, .attention_mask = at::ones({1, 9}, at::kLong)}, prompt(), 3);
    EXPECT_EQ(cache.get_seq_length(), 11);
  }
}

TEST_P(CacheReuse, F24OnlyNewTokensWithoutAWordAreTheWholeText) {
  for (const std::int64_t cached : {2, 8}) {
    const auto made = new_cache();
    Cache& cache = *made;
    fill(cache, prompt().narrow(1, 0, cached));
    const at::Tensor rest = prompt().narrow(1, cached, 9 - cached);
    check(cache, {.input_ids = rest}, rest, 3);
  }
}

TEST_P(CacheReuse, F25TheCacheWasMadeFromOtherTokens) {
  for (const std::int64_t same : {0, 1, 4, 8}) {
    const auto made = new_cache();
    Cache& cache = *made;
    at::Tensor other = prompt().clone();
    other.narrow(1, same, 9 - same).add_(20);
    fill(cache, other);
    expect_reusable(cache, prompt(), same);
    check(cache, {.input_ids = prompt()}, prompt(), 3);
  }
}

TEST_P(CacheReuse, F26TheNextTurnFeedsTheLastTokenToo) {
  const auto made = new_cache();
  Cache& cache = *made;
  const Output first = check(cache, {.input_ids = prompt()}, prompt(), 4);
  ASSERT_EQ(first.sequences.size(1), 13);
  ASSERT_EQ(cache.get_seq_length(), 12);
  const at::Tensor turn = at::cat({first.sequences, ids_tensor({{30, 31}})}, 1);
  const Output second = check(cache, {.input_ids = turn}, turn, 3);
  EXPECT_EQ(second.timings.prefill_tokens, 3);
}

TEST_P(CacheReuse, F26TheSameAsAContinuation) {
  const auto made = new_cache();
  Cache& cache = *made;
  const Output first = check(cache, {.input_ids = prompt()}, prompt(), 4);
  const at::Tensor turn = at::cat({first.sequences, ids_tensor({{30, 31}})}, 1);
  check(cache, {.input_ids = turn.narrow(1, 12, 3), .continuation = true}, turn, 3);
}

TEST_P(CacheReuse, TheReturnedCacheGoesOn) {
  const Output first = run({.input_ids = prompt()}, config(4), nullptr);
  const at::Tensor turn = at::cat({first.sequences, ids_tensor({{30}})}, 1);
  check(*first.cache, {.input_ids = turn}, turn, 3);
}

TEST_P(CacheReuse, AFailureMidwayLeavesACacheThatWorks) {
  const auto made = new_cache();
  Cache& cache = *made;
  int steps = 0;
  CallbackStreamer streamer([&](const at::Tensor&) {
    if (++steps == 3) throw std::runtime_error("enough");
  });
  EXPECT_THROW(run({.input_ids = prompt(), .streamer = &streamer}, config(6), &cache),
               std::runtime_error);
  EXPECT_EQ(cache.get_seq_length(), 11);
  check(cache, {.input_ids = prompt()}, prompt(), 6);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CacheReuse,
    ::testing::Combine(::testing::Values("llama", "mistral", "qwen2", "mamba", "lfm2", "qwen3_next",
                                         "gemma3_text", "llama4_text"),
                       ::testing::Bool(), ::testing::Values("Dynamic", "Static")),
    [](const auto& suite) {
      return std::string(std::get<0>(suite.param)) +
             (std::get<1>(suite.param) ? "Sampling" : "Greedy") + std::get<2>(suite.param);
    });

// --- Padded batches, rows that ended early, refusals ---------------------------------------------

const GenerationConfig kGreedy{.max_new_tokens = 5, .pad_token_id = 0};

Inputs padded_batch() {
  return {.input_ids = ids_tensor({kPrompt[0], {0, 0, 0, 0, 0, 0, 12, 13, 14}}),
          .attention_mask =
              ids_tensor({Rows{{1, 1, 1, 1, 1, 1, 1, 1, 1}}[0], {0, 0, 0, 0, 0, 0, 1, 1, 1}})};
}

TEST(CacheReusePadded, TheSamePaddingIsKept) {
  const CausalLM& model = testing::checkpoint("llama");
  DynamicCache cache(model.config());
  const Output first = generate(model, padded_batch(), kGreedy, &cache);
  Inputs other_pads = padded_batch();
  other_pads.input_ids[1].narrow(0, 0, 6).fill_(33);
  const Output second = generate(model, other_pads, kGreedy, &cache);
  EXPECT_TRUE(first.sequences.narrow(1, 9, 5).equal(second.sequences.narrow(1, 9, 5)));
  EXPECT_EQ(first.timings.prefill_tokens, 18);
  EXPECT_EQ(second.timings.prefill_tokens, 2);
}

TEST(CacheReusePadded, OtherPaddingIsComputedAgain) {
  const CausalLM& model = testing::checkpoint("llama");
  DynamicCache cache(model.config());
  generate(model, padded_batch(), kGreedy, &cache);
  Inputs other = padded_batch();
  other.attention_mask->index({1, 5}).fill_(1);
  const Output reused = generate(model, other, kGreedy, &cache);
  EXPECT_TRUE(reused.sequences.equal(generate(model, other, kGreedy).sequences));
  EXPECT_EQ(reused.timings.prefill_tokens, 2 * 4);
}

// A batch whose row 0 ends with its second new token, three before row 1.
struct EarlyEnd {
  DynamicCache cache;
  at::Tensor sequences;

  explicit EarlyEnd(const CausalLM& model) : cache(model.config()) {
    const at::Tensor free_run = generate(model, padded_batch(), kGreedy).sequences;
    GenerationConfig config = kGreedy;
    config.eos_token_id = {{free_run[0][10].item<std::int64_t>()}};
    sequences = generate(model, padded_batch(), config, &cache).sequences;
    EXPECT_TRUE(sequences[0].narrow(0, 11, 3).eq(0).all().item<bool>()) << sequences;
    EXPECT_TRUE(sequences[1].equal(free_run[1])) << "choose another end token";
  }

  // The last token of each row, which was not fed yet, and two more.
  Inputs next_turn() const {
    return {.input_ids = ids_tensor({{sequences[0][10].item<std::int64_t>(), 20, 21},
                                     {sequences[1][13].item<std::int64_t>(), 22, 23}}),
            .continuation = true};
  }
};

TEST(CacheReusePadded, F30ARowThatEndedEarlyGoesOnWithoutItsPads) {
  for (const char* name : {"llama", "mistral_full", "qwen3", "mistral", "qwen2"}) {
    SCOPED_TRACE(name);
    const CausalLM& model = testing::checkpoint(name);
    EarlyEnd turn(model);
    const Inputs more = turn.next_turn();
    const at::Tensor made = generate(model, more, kGreedy, &turn.cache).sequences.narrow(1, 3, 5);
    const auto alone = [&](const at::Tensor& first, const at::Tensor& second) {
      const at::Tensor ids = at::cat({first, second}).unsqueeze(0);
      return generate(model, {.input_ids = ids}, kGreedy).sequences[0].narrow(0, ids.size(1), 5);
    };
    const at::Tensor row0 = alone(turn.sequences[0].narrow(0, 0, 10), more.input_ids[0]);
    const at::Tensor row1 = alone(turn.sequences[1].narrow(0, 6, 7), more.input_ids[1]);
    EXPECT_TRUE(made[0].equal(row0)) << made[0] << row0;
    EXPECT_TRUE(made[1].equal(row1)) << made[1] << row1;
  }
}

// Layers of several kinds in one cache go back to nothing together.
TEST(CacheReuseMixed, F27GoingBackToNothing) {
  for (const char* name : {"lfm2", "jamba", "qwen3_next", "gemma3_text"}) {
    SCOPED_TRACE(name);
    const CausalLM& model = testing::checkpoint(name);
    DynamicCache cache(model.config());
    cache.activate_past_recording();
    model.forward({.input_ids = prompt().narrow(1, 0, 5)}, &cache);
    cache.crop(-5);
    EXPECT_EQ(cache.get_seq_length(), 0);
    EXPECT_EQ(cache.get_mask_sizes(3, 0).first, 3);
    const at::Tensor other = ids_tensor({{12, 13, 14}});
    EXPECT_CLOSE(model.forward({.input_ids = other}, &cache), model.forward({.input_ids = other}),
                 1e-4);
    EXPECT_EQ(cache.get_seq_length(), 3);
  }
}

TEST(CacheReusePadded, ProcessorsSeeAContinuationsWholeText) {
  const CausalLM& model = testing::checkpoint("llama");
  GenerationConfig config = kGreedy;
  config.repetition_penalty = 1.5;
  const Inputs whole{.input_ids = prompt()};
  const at::Tensor right = generate(model, whole, config).sequences.narrow(1, 9, 5);
  DynamicCache cache(model.config());
  model.forward({.input_ids = prompt().narrow(1, 0, 6)}, &cache);
  const Inputs rest{.input_ids = prompt().narrow(1, 6, 3), .continuation = true};
  EXPECT_TRUE(generate(model, rest, config, &cache).sequences.narrow(1, 3, 5).equal(right));
}

TEST(CacheReuseRefusals, AnotherNumberOfRows) {
  const CausalLM& model = testing::checkpoint("llama");
  DynamicCache cache(model.config());
  generate(model, padded_batch(), kGreedy, &cache);
  EXPECT_THAT(
      refusal<ValueError>([&] { generate(model, {.input_ids = prompt()}, kGreedy, &cache); }),
      HasSubstr("the cache holds 2 rows, but 1 sequences"));
  EXPECT_EQ(cache.get_seq_length(), 13);
}

TEST(CacheReuseRefusals, AWindowOverPadsBetweenTokens) {
  const CausalLM& model = testing::checkpoint("qwen2");
  DynamicCache cache(model.config());
  const Inputs begun = padded_batch();
  model.forward({.input_ids = begun.input_ids, .attention_mask = begun.attention_mask}, &cache);
  const at::Tensor one = ids_tensor({{0}, {7}});
  model.forward({.input_ids = one, .attention_mask = ids_tensor({{0}, {1}})}, &cache);
  const Inputs more{.input_ids = one, .continuation = true};
  EXPECT_THAT(refusal<RuntimeError>([&] { generate(model, more, kGreedy, &cache); }),
              HasSubstr("row 0 of the cache holds padding between its tokens"));
  EXPECT_EQ(cache.get_seq_length(), 10);
}

TEST(CacheReuseRefusals, ACacheThatDoesNotKnowItsTokens) {
  const CausalLM& model = testing::checkpoint("llama");
  DynamicCache cache;
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    cache.update(at::zeros({1, 2, 4, 8}), at::zeros({1, 2, 4, 8}), layer);
  }
  EXPECT_THAT(
      refusal<RuntimeError>([&] { generate(model, {.input_ids = prompt()}, kGreedy, &cache); }),
      HasSubstr("declare a continuation"));
  EXPECT_EQ(cache.get_seq_length(), 4);
  generate(model, {.input_ids = prompt(), .continuation = true}, kGreedy, &cache);
  EXPECT_EQ(cache.get_seq_length(), 4 + 9 + 4);
}

TEST(CacheReuseRefusals, BadInputsLeaveTheCacheAlone) {
  const CausalLM& model = testing::checkpoint("llama");
  DynamicCache cache(model.config());
  model.forward({.input_ids = prompt()}, &cache);
  const at::Tensor unknown_id = ids_tensor({{5, 6, 64}});
  EXPECT_THAT(
      refusal<ValueError>([&] { generate(model, {.input_ids = unknown_id}, kGreedy, &cache); }),
      HasSubstr("64"));
  const GenerationConfig too_short{.max_length = 3};
  EXPECT_THROW(generate(model, {.input_ids = ids_tensor({{5, 6, 9}})}, too_short, &cache),
               ValueError);
  const GenerationConfig sampling{.max_new_tokens = 2, .do_sample = true};
  EXPECT_THROW(generate(model, {.input_ids = ids_tensor({{5, 6, 9}})}, sampling, &cache),
               ValueError);
  const GenerationConfig uncached{.max_new_tokens = 2, .use_cache = false};
  EXPECT_THROW(generate(model, {.input_ids = prompt()}, uncached, &cache), ValueError);
  EXPECT_EQ(cache.get_seq_length(), 9);
}

}  // namespace
}  // namespace kvcache
