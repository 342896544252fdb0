// What rows that have ended cost, and what processors, criteria and streamers see of them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/ended_rows.h"
#include "tests/support/failing_memory.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::ElementsAre;
using Numbers = std::vector<std::int64_t>;

TEST(RunningRows, OnlyRowsThatRunAreFed) {
  const auto fed = [](const std::string& model, const std::string& kind) {
    const NotingModel noting(model_named(model));
    const auto cache = kind == "None" ? nullptr : cache_for(model_named(model), kind);
    const Padded batch = padded(kPrompts);
    const Output output = generate(
        noting,
        {.input_ids = batch.ids,
         .attention_mask = batch.mask,
         .stopping_criteria = {std::make_shared<EndAfter>(kEnds)}},
        {.max_new_tokens = 6, .use_cache = kind != "None", .pad_token_id = kPad}, cache.get());
    EXPECT_EQ(output.timings.decode_tokens, 3 + 2 + 2 + 1 + 1);
    EXPECT_EQ(output.timings.prefill_tokens, 27);
    return noting.rows;
  };
  for (const char* model : {"llama", "mistral", "mamba", "jamba"}) {
    EXPECT_THAT(fed(model, "Dynamic"), ElementsAre(3, 3, 2, 2, 1, 1)) << model;
    EXPECT_THAT(fed(model, "None"), ElementsAre(3, 3, 2, 2, 1, 1)) << model;
  }
  EXPECT_THAT(fed("mistral", "Static"), ElementsAre(3, 3, 2, 2, 1, 1));
  EXPECT_THAT(fed("llama", "Static"), ElementsAre(3, 3, 3, 3, 3, 3));  // they stay where they lie
}

TEST(RunningRows, F30TheNextPositionIsThatOfTheRowAlone) {
  for (const char* kind : {"Dynamic", "Static"}) {
    const CausalLM& model = checkpoint("llama");
    const auto cache = cache_for(model, kind);
    const Inputs inputs{.input_ids = ids_tensor({kPrompts[0], kPrompts[0]}).add(1),
                        .stopping_criteria = {std::make_shared<EndAfter>(Numbers{2, 6})}};
    generate(model, inputs, {.max_new_tokens = 6, .pad_token_id = kPad}, cache.get());
    EXPECT_EQ(numbers_of(cache->history().positions({.batch = 2, .tokens = 1}).flatten()),
              (Numbers{10, 14}));
  }
}

TEST(RunningRows, BuffersOfAFixedSizeStayWhereTheyAre) {
  for (const char* name : {"llama", "mistral", "mixed"}) {
    for (const char* kind : {"Static", "Early"}) {
      const CausalLM& model = model_named(name);
      const auto cache = cache_for(model, kind);
      const Padded batch = padded(kPrompts);
      Inputs inputs{.input_ids = batch.ids, .attention_mask = batch.mask};
      const GenerationConfig config{.max_new_tokens = 6, .pad_token_id = kPad};
      generate(model, inputs, config, cache.get());
      const auto addresses = [&] {
        std::vector<const void*> result;
        for (const KeyValue& each : buffers(static_cast<LayeredCache&>(*cache))) {
          result.push_back(each.keys.const_data_ptr());
        }
        return result;
      };
      const auto before = addresses();
      inputs.stopping_criteria = {std::make_shared<EndAfter>(kEnds)};
      generate(model, inputs, config, cache.get());
      EXPECT_EQ(addresses(), before) << name << ' ' << kind;
    }
  }
}

// Draws for ended rows are made, too, so that no row's random numbers depend on its neighbours.
TEST(RunningRows, SampledIdsAreThoseWithoutEnds) {
  for (const char* kind : {"Dynamic", "Static"}) {
    for (const char* name : {"llama", "mistral", "lfm2"}) {
      const CausalLM& model = checkpoint(name);
      const auto run = [&](const StoppingCriteria& criteria) {
        const auto cache = cache_for(model, kind);
        const Padded batch = padded(kPrompts);
        return generate(model,
                        {.input_ids = batch.ids,
                         .attention_mask = batch.mask,
                         .generator = make_generator(11),
                         .stopping_criteria = criteria},
                        {.max_new_tokens = 6, .do_sample = true, .pad_token_id = kPad}, cache.get())
            .sequences;
      };
      const at::Tensor whole = run({}), ended = run({std::make_shared<EndAfter>(kEnds)});
      for (std::int64_t i = 0; i < 3; ++i) {
        const std::int64_t own = 9 + kEnds[static_cast<std::size_t>(i)];
        EXPECT_TRUE(ended[i].narrow(0, 0, own).equal(whole[i].narrow(0, 0, own))) << name << i;
        EXPECT_TRUE(ended[i].narrow(0, own, 15 - own).eq(kPad).all().item<bool>()) << name << i;
      }
    }
  }
}

TEST(RunningRows, OthersGoOnSeeingAllRows) {
  struct Watch final : LogitsProcessor {
    at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
      texts.push_back(text.ids.sizes().vec());
      all_scores.push_back(scores.clone());
      return at::where(scores.eq(0).all(1, /*keepdim=*/true), -INFINITY, scores);
    }
    std::vector<Numbers> texts;
    std::vector<at::Tensor> all_scores;
  };
  for (const char* kind : {"Dynamic", "Static"}) {
    const CausalLM& model = checkpoint("llama");
    const auto cache = cache_for(model, kind);
    const auto watch = std::make_shared<Watch>();
    const auto ends = std::make_shared<EndAfter>(kEnds);
    std::vector<at::Tensor> streamed;
    CallbackStreamer streamer([&](const at::Tensor& step) { streamed.push_back(step.clone()); });
    const Padded batch = padded(kPrompts);
    const Output output =
        generate(model,
                 {.input_ids = batch.ids,
                  .attention_mask = batch.mask,
                  .logits_processors = {watch},
                  .stopping_criteria = {ends},
                  .streamer = &streamer},
                 {.max_new_tokens = 6, .pad_token_id = kPad, .output_logits = true}, cache.get());
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto at = static_cast<std::size_t>(step);
      EXPECT_EQ(watch->texts[at], (Numbers{3, 9 + step}));
      EXPECT_EQ(ends->shapes[at], (Numbers{3, 10 + step}));
      EXPECT_TRUE(streamed[at].equal(output.sequences.select(1, 9 + step)));
      for (std::int64_t i = 0; i < 3; ++i) {
        const bool ended = step >= kEnds[static_cast<std::size_t>(i)];
        EXPECT_EQ(watch->all_scores[at][i].eq(0).all().item<bool>(), ended) << i << ' ' << step;
        EXPECT_TRUE((*output.logits)[i][step].equal(watch->all_scores[at][i]));
      }
    }
    EXPECT_TRUE(output.sequences[1].narrow(0, 9, 6).equal(
        at::tensor(alone(model, kPrompts[1], 6), at::kLong)));
  }
}

// Every allocation of a run fails once: the cache then holds the steps done so far, of all rows, or
// no tokens, where rows could not come back; and the same run works on it.
TEST(RunningRows, WhereMemoryLacksTheCacheStaysWhole) {
  for (const ModelAndCache& each :
       {ModelAndCache{"llama", "Dynamic"}, ModelAndCache{"mistral", "Dynamic"},
        ModelAndCache{"mixed", "Static"}, ModelAndCache{"jamba", "Dynamic"}}) {
    SCOPED_TRACE(each);
    const CausalLM& model = model_named(each.model);
    const Padded batch = padded(kPrompts);
    int steps = 0;
    const auto run = [&](Cache& cache) {
      steps = 0;
      CallbackStreamer streamer([&](const at::Tensor&) { ++steps; });
      return generate(model,
                      {.input_ids = batch.ids,
                       .attention_mask = batch.mask,
                       .stopping_criteria = {std::make_shared<EndAfter>(kEnds)},
                       .streamer = &streamer},
                      {.max_new_tokens = 6, .pad_token_id = kPad}, &cache)
          .sequences;
    };
    const auto memory = std::make_shared<FailingMemory>();
    const at::Tensor right = run(*cache_for(model, each.cache, memory));
    const std::int64_t allocations = memory->allocations();
    ASSERT_GT(allocations, 20);
    int emptied = 0, whole = 0;
    for (std::int64_t failing = 0; failing < allocations; ++failing) {
      const auto own = std::make_shared<FailingMemory>();
      const auto cache = cache_for(model, each.cache, own);
      own->fail_after(failing);
      try {
        EXPECT_TRUE(run(*cache).equal(right));
      } catch (const c10::OutOfMemoryError&) {
        const std::int64_t batch_size = cache->batch_size();
        ASSERT_TRUE(batch_size == 0 || batch_size == 3) << failing;
        EXPECT_EQ(cache->get_seq_length(), batch_size == 0 ? 0 : cache->history().seen());
        if (batch_size == 0 && steps > 0) ++emptied;
        if (batch_size == 3) ++whole;
        for (std::int64_t i = 0; i < batch_size; ++i) {
          const Numbers held = held_tokens(*cache, i);
          const auto& prompt = kPrompts[static_cast<std::size_t>(i)];
          const auto made = std::min<std::int64_t>(steps, kEnds[static_cast<std::size_t>(i)]);
          EXPECT_EQ(held.size(), prompt.size() + static_cast<std::size_t>(made) - 1) << failing;
          const auto begin = 9 - static_cast<std::int64_t>(prompt.size());
          const auto length = static_cast<std::int64_t>(held.size());
          EXPECT_EQ(held, numbers_of(right[i].narrow(0, begin, length))) << failing;
        }
      }
      EXPECT_TRUE(run(*cache).equal(right)) << failing;
    }
    EXPECT_GT(whole, 0);
    EXPECT_EQ(emptied > 0, each.cache == std::string("Dynamic"));
  }
}

}  // namespace
}  // namespace kvcache::testing
