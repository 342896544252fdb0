// resilient_generate(): what a failed attempt leaves, and what the next one makes.
#include "kvcache/generation/resilient_generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using testing::FailingMemory;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

const at::Tensor kPrompt = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}});

// A model for whose forward passes there is no memory at some counts, the first being 0.
class Starved final : public LanguageModel {
 public:
  Starved(const LanguageModel& model, std::vector<std::int64_t> failing)
      : LanguageModel(model.config(), model.dtype(), model.device()),
        model_(model),
        failing_(std::move(failing)) {}

  bool needs_whole_text(const ForwardInput& input, Cache& cache) const override {
    return model_.needs_whole_text(input, cache);
  }

  mutable std::int64_t passes = 0;

 protected:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    const bool fails = std::find(failing_.begin(), failing_.end(), passes++) != failing_.end();
    at::Tensor logits = model_.forward(input, cache);  // which the cache has taken in
    TORCH_CHECK_WITH(OutOfMemoryError, !fails, "no memory for pass ", passes - 1);
    return logits;
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }

 private:
  const LanguageModel& model_;
  std::vector<std::int64_t> failing_;
};

GenerationConfig with(const char* cache, GenerationConfig config) {
  config.cache_implementation = cache;
  return config;
}

class ResilientGenerate : public ::testing::TestWithParam<const char*> {
 protected:
  const LanguageModel& model() const { return testing::checkpoint_of_either_sort(GetParam()); }
};

TEST_P(ResilientGenerate, TheNextAttemptMakesWhatItAloneMakes) {
  const GenerationConfig config{
      .max_new_tokens = 6, .do_sample = true, .top_k = 0, .output_logits = true};
  GenerationConfig pieces = with("static", config);
  pieces.prefill_chunk_size = 4;
  auto expected_generator = make_generator(3);
  const Output expected = generate(model(), {.input_ids = kPrompt, .generator = expected_generator},
                                   with("static", config));
  for (std::int64_t failing = 0; failing < 6; ++failing) {
    const Starved starved(model(), {failing, failing + 1});
    std::vector<std::int64_t> streamed;
    CallbackStreamer streamer(
        [&](const at::Tensor& token) { streamed.push_back(token.item<std::int64_t>()); });
    auto generator = make_generator(3);
    const ResilientOutput made = resilient_generate(
        starved, {.input_ids = kPrompt, .generator = generator, .streamer = &streamer},
        {config, pieces, with("static", config)});
    EXPECT_TRUE(made.output.sequences.equal(expected.sequences)) << failing;
    EXPECT_CLOSE(*made.output.logits, *expected.logits, 1e-4);
    EXPECT_TRUE(generator.get_state().equal(expected_generator.get_state()));
    const std::int64_t prompt = expected.sequences.size(1) - 6;
    EXPECT_TRUE(at::tensor(streamed, at::kLong).equal(expected.sequences[0].narrow(0, prompt, 6)));
    // The second one runs out of memory at once.
    ASSERT_EQ(made.attempts.size(), 3U);
    EXPECT_EQ(made.attempts[0].cache, "dynamic");
    EXPECT_EQ(made.attempts[0].error, "no memory for pass " + std::to_string(failing));
    EXPECT_EQ(made.attempts[1].error, "no memory for pass " + std::to_string(failing + 1));
    EXPECT_EQ(made.attempts[2].cache, "static");
    EXPECT_EQ(made.attempts[2].error, "");
    if (const auto& planned = made.attempts[2].planned_bytes) {
      EXPECT_EQ(*planned, made.output.cache->allocated_bytes());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ResilientGenerate,
                         ::testing::Values("llama", "mistral", "lfm2", "jamba", "t5"),
                         [](const auto& name) { return std::string(name.param); });

TEST(ResilientGenerateReport, SaysWhatACacheIsGoingToTake) {
  const LanguageModel& model = testing::checkpoint("llama");
  const GenerationConfig config{.max_new_tokens = 6};
  const ResilientOutput made = resilient_generate(model, {.input_ids = kPrompt}, {config});
  EXPECT_EQ(made.attempts.at(0).planned_bytes, made.output.cache->allocated_bytes());
  DynamicCache cache(model.config());
  const ResilientOutput passed =
      resilient_generate(model, {.input_ids = kPrompt}, {config}, &cache);
  EXPECT_EQ(passed.attempts.at(0).cache, "dynamic");
  EXPECT_EQ(passed.attempts.at(0).planned_bytes, made.attempts.at(0).planned_bytes);
  GenerationConfig uncached = config;
  uncached.use_cache = false;
  const ResilientOutput without = resilient_generate(model, {.input_ids = kPrompt}, {uncached});
  EXPECT_EQ(without.attempts.at(0).cache, "none");
  EXPECT_TRUE(without.output.sequences.equal(made.output.sequences));
}

// More than any machine has, which no plan counts either.
TEST(ResilientGenerateReport, NamesTheReason) {
  const LanguageModel& model = testing::checkpoint("llama");
  const Inputs inputs{.input_ids = kPrompt.repeat({8, 1})};
  const GenerationConfig config{.max_new_tokens = 6};
  GenerationConfig large = with("static", config);
  large.max_cache_len = std::int64_t{1} << 40;
  const ResilientOutput made = resilient_generate(model, inputs, {large, config});
  EXPECT_THAT(made.attempts.at(0).error, HasSubstr("there is no memory for a buffer of more than"));
  EXPECT_FALSE(made.attempts.at(0).planned_bytes);
  EXPECT_TRUE(made.output.sequences.equal(generate(model, inputs, config).sequences));
}

#ifndef __SANITIZE_ADDRESS__  // whose allocator ends the process on its own

TEST(ResilientGenerateReport, TheAllocatorsOwnErrorIsAReasonToo) {
  const LanguageModel& model = testing::checkpoint("llama");
  const Inputs inputs{.input_ids = kPrompt};
  const GenerationConfig config{.max_new_tokens = 6};
  GenerationConfig large = with("static", config);
  large.max_cache_len = std::int64_t{1} << 38;
  const ResilientOutput made = resilient_generate(model, inputs, {large, config});
  EXPECT_THAT(made.attempts.at(0).error, HasSubstr("can't allocate memory"));
  EXPECT_TRUE(made.output.sequences.equal(generate(model, inputs, config).sequences));
}

#endif

TEST(ResilientGenerateReport, NamesEachAttemptWhereAllFail) {
  const Starved starved(testing::checkpoint("llama"), {2, 3});
  const GenerationConfig config{.max_new_tokens = 6, .do_sample = true};
  auto generator = make_generator(3);
  const at::Tensor before = generator.get_state();
  std::string message;
  try {
    resilient_generate(starved, {.input_ids = kPrompt, .generator = generator},
                       {config, with("static", config)});
  } catch (const c10::OutOfMemoryError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_THAT(message, HasSubstr("memory ran out in each of 2 attempts: 1, cache \"dynamic\" of "));
  EXPECT_THAT(message, HasSubstr("bytes: no memory for pass 2; 2, cache \"static\" of "));
  EXPECT_THAT(message, HasSubstr("bytes: no memory for pass 3"));
  EXPECT_TRUE(generator.get_state().equal(before));
}

TEST(ResilientGenerateRefusals, ComeBeforeTheFirstAttempt) {
  const Starved model(testing::checkpoint("llama"), {});
  const GenerationConfig config{.max_new_tokens = 6};
  const Inputs inputs{.input_ids = kPrompt};
  EXPECT_THAT(refusal<ValueError>([&] { resilient_generate(model, inputs, {}); }),
              HasSubstr("there is no config"));
  EXPECT_THAT(refusal<ValueError>([&] {
                resilient_generate(model, inputs, {config, with("paged", config)});
              }),
              HasSubstr("there is no cache_implementation \"paged\""));
  EXPECT_THAT(refusal<ValueError>([&] {
                resilient_generate(model, inputs, {config, with("offloaded", config)});
              }),
              HasSubstr("cache_implementation \"offloaded\" is not supported yet"));
  DynamicCache cache(model.config());
  EXPECT_THAT(refusal<ValueError>([&] {
                resilient_generate(model, inputs, {config, with("static", config)}, &cache);
              }),
              HasSubstr("past_key_values was passed together with cache_implementation"));
  EXPECT_EQ(model.passes, 0);
}

TEST(ResilientGenerateErrors, OthersPassThroughAtOnce) {
  const Starved model(testing::checkpoint("llama"), {});
  CallbackStreamer streamer([](const at::Tensor&) { throw std::runtime_error("enough"); });
  const GenerationConfig config{.max_new_tokens = 6};
  EXPECT_THROW(resilient_generate(model, {.input_ids = kPrompt, .streamer = &streamer},
                                  {config, with("static", config)}),
               std::runtime_error);
  EXPECT_EQ(model.passes, 1);
}

// Keeps a token from being chosen from the second attempt on.
class Forbid final : public LogitsProcessor {
 public:
  Forbid(const Starved& model, std::int64_t from_pass, std::int64_t token)
      : model_(model), from_pass_(from_pass), token_(token) {}

  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    if (model_.passes < from_pass_) return scores;
    at::Tensor changed = scores.clone();
    changed.select(1, token_).fill_(-1e9);
    return changed;
  }

 private:
  const Starved& model_;
  std::int64_t from_pass_;
  std::int64_t token_;
};

TEST(ResilientGenerateErrors, StreamedTokensThatDoNotComeAgain) {
  const LanguageModel& llama = testing::checkpoint("llama");
  const GenerationConfig config{.max_new_tokens = 6};
  const Output free = generate(llama, {.input_ids = kPrompt}, config);
  const Starved model(llama, {3});  // three tokens were streamed
  std::int64_t streamed = 0;
  CallbackStreamer streamer([&](const at::Tensor&) { ++streamed; });
  const auto forbid = std::make_shared<Forbid>(model, 5, free.sequences[0][9].item<std::int64_t>());
  EXPECT_THAT(refusal<RuntimeError>([&] {
                resilient_generate(
                    model,
                    {.input_ids = kPrompt, .logits_processors = {forbid}, .streamer = &streamer},
                    {config, config});
              }),
              HasSubstr("which cannot be taken back"));
  EXPECT_EQ(streamed, 3);
}

TEST(ResilientGenerateRunner, LetsGoOfTheCachesItKept) {
  const LanguageModel& model = testing::checkpoint("llama");
  const GenerationConfig config{.max_new_tokens = 6};
  const Starved starved(model, {7});  // the first call takes 6 passes
  Runner runner(starved);
  const Inputs inputs{.input_ids = kPrompt};
  const std::weak_ptr<Cache> kept = runner.generate(inputs, with("static", config)).cache;
  EXPECT_FALSE(kept.expired());
  const ResilientOutput made = resilient_generate(runner, inputs, {with("static", config), config});
  EXPECT_TRUE(kept.expired());
  EXPECT_EQ(made.output.cache->kind(), "dynamic");
  EXPECT_EQ(made.attempts.size(), 2U);
}

// A cache that is passed in, of a kind, over memory that is refused at some allocation.
struct PassedCache {
  PassedCache(const LanguageModel& model, bool fixed) {
    if (fixed) {
      cache = std::make_unique<StaticCache>(
          model.config(), StaticCacheOptions{.max_cache_len = 40, .memory = memory});
    } else {
      cache = std::make_unique<DynamicCache>(model.config(), DynamicCacheOptions{.memory = memory});
    }
  }

  std::shared_ptr<FailingMemory> memory = std::make_shared<FailingMemory>();
  std::unique_ptr<Cache> cache;
};

class ResilientPassedCache : public ::testing::TestWithParam<const char*> {
 protected:
  // Both ways of going on with what a cache holds: by the whole text, and by what follows.
  void check(bool fixed, bool continuation) const {
    const LanguageModel& model = testing::checkpoint_of_either_sort(GetParam());
    const GenerationConfig config{.max_new_tokens = 6};
    GenerationConfig pieces = config;
    pieces.prefill_chunk_size = 2;
    const Inputs inputs{.input_ids = continuation ? kPrompt.narrow(1, 5, 4) : kPrompt,
                        .continuation = continuation};
    const Output expected = generate(model, {.input_ids = kPrompt}, config);
    std::int64_t retries = 0;
    for (std::int64_t pass = 0; pass < 6; ++pass) {
      PassedCache held(model, fixed);
      model.forward({.input_ids = kPrompt.narrow(1, 0, 5)}, held.cache.get());
      const Starved starved(model, {pass});
      const ResilientOutput made =
          resilient_generate(starved, inputs, {config, pieces}, held.cache.get());
      retries += std::int64_t(made.attempts.size()) - 1;
      const at::Tensor text = continuation
                                  ? at::cat({kPrompt.narrow(1, 0, 5), made.output.sequences}, 1)
                                  : made.output.sequences;
      EXPECT_TRUE(text.equal(expected.sequences)) << pass;
      EXPECT_EQ(held.cache->get_seq_length(), 14);
      EXPECT_TRUE(held.cache->history().ids().equal(text.narrow(1, 0, 14)));
    }
    EXPECT_EQ(retries, 6);
  }
};

TEST_P(ResilientPassedCache, GoesOnFromWhatItHeld) {
  for (const bool continuation : {false, true}) {
    check(/*fixed=*/false, continuation);
    check(/*fixed=*/true, continuation);
  }
}

TEST_P(ResilientPassedCache, IsPutBackWhereAllFail) {
  const LanguageModel& model = testing::checkpoint_of_either_sort(GetParam());
  const at::Tensor next = ids_tensor({{30}});
  for (const bool fixed : {false, true}) {
    for (const std::int64_t failing : {0, 1, 4}) {
      PassedCache held(model, fixed), control(model, fixed);
      for (Cache* cache : {held.cache.get(), control.cache.get()}) {
        model.forward({.input_ids = kPrompt.narrow(1, 0, 5)}, cache);
      }
      const Starved starved(model, {failing});
      EXPECT_THROW(resilient_generate(starved, {.input_ids = kPrompt}, {{.max_new_tokens = 6}},
                                      held.cache.get()),
                   c10::OutOfMemoryError);
      EXPECT_EQ(held.cache->get_seq_length(), 5);
      EXPECT_EQ(held.cache->nbytes(), control.cache->nbytes());
      EXPECT_TRUE(held.cache->history().ids().equal(control.cache->history().ids()));
      EXPECT_CLOSE(model.forward({.input_ids = next}, held.cache.get()),
                   model.forward({.input_ids = next}, control.cache.get()), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ResilientPassedCache,
                         ::testing::Values("llama", "mistral", "lfm2", "llama_dynamic"),
                         [](const auto& name) { return std::string(name.param); });

// The cache's own memory is refused; what an attempt took goes back before the next one begins.
TEST(ResilientMemory, NothingOfAFailedAttemptStays) {
  const LanguageModel& model = testing::checkpoint("mistral");
  const GenerationConfig config{.max_new_tokens = 12};
  PassedCache alone(model, /*fixed=*/false);
  const Output expected = generate(model, {.input_ids = kPrompt}, config, alone.cache.get());
  const std::int64_t allocations = alone.memory->allocations();
  for (std::int64_t allowed = 0; allowed < allocations; ++allowed) {
    PassedCache held(model, /*fixed=*/false);
    held.memory->fail_after(allowed);
    const ResilientOutput made =
        resilient_generate(model, {.input_ids = kPrompt}, {config, config}, held.cache.get());
    ASSERT_EQ(made.attempts.size(), 2U) << allowed;
    EXPECT_THAT(made.attempts[0].error, HasSubstr("memory refused by the test"));
    EXPECT_TRUE(made.output.sequences.equal(expected.sequences)) << allowed;
    EXPECT_EQ(held.memory->live_bytes(), alone.memory->live_bytes()) << allowed;
    EXPECT_EQ(held.memory->peak_bytes(), alone.memory->peak_bytes()) << allowed;
  }
}

}  // namespace
}  // namespace kvcache
