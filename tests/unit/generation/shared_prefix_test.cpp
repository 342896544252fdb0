// One cached prefix for many texts: a cache of one row passed with a batch (F29).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/ended_rows.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

const Numbers kPrefix = {5, 6, 7, 8};
const Rows kEven = {{9, 10, 11}, {20, 21, 22}, {9, 10, 12}};
const Rows kUneven = {{9, 10, 11}, {20}, {21, 22}};

class OnePrefix : public ::testing::TestWithParam<ModelAndCache> {
 protected:
  const CausalLM& model() const { return checkpoint(GetParam().model); }

  // Layers that neither a window nor a state moves on.
  bool full() const { return GetParam().model == std::string("llama"); }

  // Holds the prefix, in one row.
  std::unique_ptr<Cache> filled() const {
    std::unique_ptr<Cache> cache;
    if (GetParam().cache == std::string("Dynamic")) {
      cache = std::make_unique<DynamicCache>(model().config());
    } else {
      cache =
          std::make_unique<StaticCache>(model().config(), StaticCacheOptions{.max_cache_len = 20});
    }
    model().forward({.input_ids = ids_tensor({kPrefix})}, cache.get());
    return cache;
  }

  static Rows texts(const Rows& suffixes) {
    Rows rows;
    for (const Numbers& suffix : suffixes) {
      rows.push_back(kPrefix);
      rows.back().insert(rows.back().end(), suffix.begin(), suffix.end());
    }
    return rows;
  }

  void expect_alone(const at::Tensor& made, const Rows& suffixes, const Numbers& ends) const {
    const Rows rows = texts(suffixes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Numbers right = alone(model(), rows[i], ends[i]);
      right.resize(static_cast<std::size_t>(made.size(1)), kPad);
      EXPECT_EQ(numbers_of(made[static_cast<std::int64_t>(i)]), right) << "row " << i;
    }
  }

  // A cache of rows that ended after `ends` tokens, and what each goes on with.
  void expect_goes_on(Cache& cache, const Rows& suffixes, const Numbers& ends) const {
    Rows turn, rows = texts(suffixes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Numbers made = alone(model(), rows[i], ends[i]);
      rows[i].insert(rows[i].end(), made.begin(), made.end());
      EXPECT_EQ(held_tokens(cache, static_cast<std::int64_t>(i)),
                Numbers(rows[i].begin(), rows[i].end() - 1));
      turn.push_back({rows[i].back(), 30, 31});
      rows[i].insert(rows[i].end(), {30, 31});
    }
    const at::Tensor made = generate(model(), {.input_ids = ids_tensor(turn), .continuation = true},
                                     {.max_new_tokens = 4, .pad_token_id = kPad}, &cache)
                                .sequences.narrow(1, 3, 4);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(numbers_of(made[static_cast<std::int64_t>(i)]), alone(model(), rows[i], 4)) << i;
    }
  }
};

TEST_P(OnePrefix, F29WholeTexts) {
  const auto cache = filled();
  const Output output = generate(model(), {.input_ids = ids_tensor(texts(kEven))},
                                 {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
  EXPECT_EQ(output.timings.prefill_tokens, 3 * 3);
  expect_alone(output.sequences.narrow(1, 7, 5), kEven, {5, 5, 5});
  EXPECT_EQ(cache->batch_size(), 3);
}

TEST_P(OnePrefix, F29SuffixesAsAContinuation) {
  const auto cache = filled();
  const Output output = generate(model(), {.input_ids = ids_tensor(kEven), .continuation = true},
                                 {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
  expect_alone(output.sequences.narrow(1, 3, 5), kEven, {5, 5, 5});
}

TEST_P(OnePrefix, F29TextsOfDifferentLengths) {
  const auto cache = filled();
  const Padded batch = padded(texts(kUneven));
  const Output output = generate(model(), {.input_ids = batch.ids, .attention_mask = batch.mask},
                                 {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
  EXPECT_EQ(output.timings.prefill_tokens, full() ? 3 * 3 : 3 * 7);
  EXPECT_TRUE(output.sequences.narrow(1, 0, 7).equal(batch.ids));
  expect_alone(output.sequences.narrow(1, 7, 5), kUneven, {5, 5, 5});
}

TEST_P(OnePrefix, F29SuffixesOfDifferentLengths) {
  const auto cache = filled();
  const Padded batch = padded(kUneven);
  const Inputs inputs{.input_ids = batch.ids, .attention_mask = batch.mask, .continuation = true};
  const GenerationConfig config{.max_new_tokens = 5, .pad_token_id = kPad};
  if (full()) {
    expect_alone(generate(model(), inputs, config, cache.get()).sequences.narrow(1, 3, 5), kUneven,
                 {5, 5, 5});
    return;
  }
  EXPECT_THAT(refusal<ValueError>([&] { generate(model(), inputs, config, cache.get()); }),
              HasSubstr("row 1 has padding behind what the cache holds"));
  EXPECT_EQ(cache->batch_size(), 1);
  EXPECT_EQ(cache->get_seq_length(), 4);
}

TEST_P(OnePrefix, F29F30RowsThatEndEarlyGoOn) {
  for (const Rows& suffixes : {kEven, kUneven}) {
    const auto cache = filled();
    const Padded batch = padded(texts(suffixes));
    const Numbers ends = {2, 6, 4};
    const Output output = generate(model(),
                                   {.input_ids = batch.ids,
                                    .attention_mask = batch.mask,
                                    .stopping_criteria = {std::make_shared<EndAfter>(ends)}},
                                   {.max_new_tokens = 6, .pad_token_id = kPad}, cache.get());
    expect_alone(output.sequences.narrow(1, 7, 6), suffixes, ends);
    expect_goes_on(*cache, suffixes, ends);
  }
}

TEST_P(OnePrefix, SeveralAnswersToOnePrompt) {
  const auto cache = filled();
  const auto run = [&](Cache* on) {
    return generate(model(),
                    {.input_ids = ids_tensor({texts(kEven)[0]}), .generator = make_generator(5)},
                    {.max_new_tokens = 5,
                     .do_sample = true,
                     .num_return_sequences = 3,
                     .pad_token_id = kPad},
                    on)
        .sequences;
  };
  EXPECT_TRUE(run(cache.get()).equal(run(nullptr)));
}

INSTANTIATE_TEST_SUITE_P(
    Models, OnePrefix,
    ::testing::Values(ModelAndCache{"llama", "Dynamic"}, ModelAndCache{"llama", "Static"},
                      ModelAndCache{"mistral", "Dynamic"}, ModelAndCache{"mistral", "Static"},
                      ModelAndCache{"jamba", "Dynamic"}, ModelAndCache{"mamba", "Dynamic"},
                      ModelAndCache{"lfm2", "Static"}),
    [](const auto& suite) { return std::string(suite.param.model) + suite.param.cache; });

TEST(SharedPrefix, F29ThePrefixIsHeldOnce) {
  const CausalLM& model = checkpoint("llama");
  DynamicCache cache(model.config());
  at::Tensor prefix = at::arange(200).remainder(60).unsqueeze(0);
  model.forward({.input_ids = prefix}, &cache);
  const std::int64_t one = cache.nbytes();
  const at::Tensor ids = at::cat({prefix.repeat({8, 1}), at::arange(8).unsqueeze(1)}, 1);
  generate(model,
           {.input_ids = ids,
            .stopping_criteria = {std::make_shared<EndAfter>(Numbers{1, 2, 3, 4, 5, 6, 6, 6})}},
           {.max_new_tokens = 6, .pad_token_id = kPad}, &cache);
  EXPECT_EQ(cache.batch_size(), 8);
  EXPECT_LT(cache.nbytes(), 2 * one);
}

TEST(SharedPrefix, RowsThatAreFixedAreRefused) {
  const CausalLM& model = checkpoint("llama");
  StaticCache cache(model.config(), {.max_cache_len = 20});
  cache.early_initialization({.batch = 1});
  model.forward({.input_ids = ids_tensor({kPrefix})}, &cache);
  const Inputs inputs{.input_ids = ids_tensor({{5, 6, 7, 8, 9}, {5, 6, 7, 8, 10}})};
  EXPECT_THAT(
      refusal<RuntimeError>([&] { generate(model, inputs, {.max_new_tokens = 3}, &cache); }),
      HasSubstr("early_initialization() made its buffers for 1"));
  EXPECT_EQ(cache.get_seq_length(), 4);
}

TEST(SharedPrefix, UnknownTokensAreRefusedBeforeAnyRowIsMade) {
  const CausalLM& model = checkpoint("llama");
  DynamicCache cache(model.config());
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    cache.update(at::zeros({1, 2, 4, 8}), at::zeros({1, 2, 4, 8}), layer);
  }
  const Inputs inputs{.input_ids = ids_tensor({{5, 6, 7, 8, 9}, {5, 6, 7, 8, 10}})};
  EXPECT_THAT(
      refusal<RuntimeError>([&] { generate(model, inputs, {.max_new_tokens = 3}, &cache); }),
      HasSubstr("declare a continuation"));
  EXPECT_EQ(cache.batch_size(), 1);
}

}  // namespace
}  // namespace kvcache::testing
