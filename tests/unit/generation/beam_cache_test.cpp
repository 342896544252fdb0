// Beam search over every kind of cache: the same texts as without one, and afterwards a cache that
// holds them and can be gone on with.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/beams.h"
#include "tests/support/checkpoints.h"
#include "tests/support/failing_processor.h"
#include "tests/support/refusal.h"
#include "tests/support/sweep.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::FailingProcessor;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::kPromptEnds;
using testing::random_ids;
using testing::refusal;
using testing::three_prompts;
using testing::three_prompts_config;

struct Kind {
  std::string model;
  std::string cache;

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) {
    return out << kind.model << "_" << kind.cache;
  }
};

std::unique_ptr<Cache> make_cache(const Kind& kind) {
  const ModelConfig& config = testing::checkpoint_of_either_sort(kind.model).config();
  const std::vector<LayerSpec> layers = config.layer_specs();
  const StaticCacheOptions room{.max_cache_len = 64};
  if (kind.model == "t5" && kind.cache == "static") {
    return std::make_unique<EncoderDecoderCache>(StaticCache(layers, room),
                                                 StaticCache(cross_attention_layers(layers), room));
  }
  if (kind.model == "t5") return std::make_unique<EncoderDecoderCache>(config);
  if (kind.cache == "static") return std::make_unique<StaticCache>(layers, room);
  return std::make_unique<DynamicCache>(layers);
}

at::Tensor all_but_last(const at::Tensor& ids) { return ids.narrow(1, 0, ids.size(1) - 1); }

class BeamCaches : public ::testing::TestWithParam<Kind> {
 protected:
  const LanguageModel& model() const {
    return testing::checkpoint_of_either_sort(GetParam().model);
  }

  Output run(const Inputs& inputs, GenerationConfig config, Cache* cache) const {
    config.use_cache = cache != nullptr;
    return generate(model(), inputs, config, cache);
  }

  // The texts of an uncached run, and a cache that holds them but their last tokens and goes on as
  // one that was made of them.
  void expect_held(const Inputs& inputs, const GenerationConfig& config) const {
    SCOPED_TRACE(c10::str(inputs.input_ids.sizes(), ", ", *config.max_new_tokens, " new tokens, ",
                          *config.num_beams, " beams"));
    const auto cache = make_cache(GetParam());
    const Output plain = run(inputs, config, nullptr);
    const Output cached = run(inputs, config, cache.get());
    ASSERT_TRUE(cached.sequences.equal(plain.sequences)) << cached.sequences << plain.sequences;
    EXPECT_LT(testing::difference(*cached.sequences_scores, *plain.sequences_scores), 1e-4);
    EXPECT_EQ(cache->batch_size(), cached.sequences.size(0));
    EXPECT_EQ(cache->get_seq_length(), cached.sequences.size(1) - 1);
    EXPECT_TRUE(cache->history().ids().equal(all_but_last(cached.sequences)));
    if (!cache->history().all_valid()) return;
    const std::int64_t each = config.num_return_sequences.value_or(1);
    Inputs more{.input_ids = cached.sequences};
    if (model().is_encoder_decoder()) {
      more = {.input_ids = inputs.input_ids.repeat_interleave(each, 0),
              .decoder_input_ids = cached.sequences};
    }
    const GenerationConfig greedy{.max_new_tokens = 3};
    const at::Tensor expected = generate(model(), more, greedy).sequences;
    EXPECT_TRUE(generate(model(), more, greedy, cache.get()).sequences.equal(expected));
  }

  // The next token's scores over the cache are those over one that was filled with the same columns
  // at once. Where layers forget, only rows without padding behind their tokens can be gone on
  // with.
  void expect_like_a_new_one(Cache& cache, const Inputs& inputs) const {
    if (any_forgets(model().config().layer_specs())) {
      cache.batch_select_indices(cache.history().valid().all(1).nonzero().flatten());
      ASSERT_EQ(cache.batch_size(), 2);
    }
    const auto fresh = make_cache(GetParam());
    ForwardInput all{.input_ids = cache.history().ids(), .attention_mask = cache.history().valid()};
    if (model().is_encoder_decoder()) {
      all.encoder = {.input_ids = inputs.input_ids};
    }
    model().forward(all, fresh.get());
    const ForwardInput next{.input_ids = at::full({cache.batch_size(), 1}, 7, at::kLong)};
    const at::Tensor expected = model().forward(next, fresh.get());
    EXPECT_LT(testing::difference(model().forward(next, &cache), expected), 1e-4);
  }

  // Both rows of a batch are their runs alone, whatever ends their beams.
  void expect_solo_runs(const std::vector<at::Tensor>& rows, const Inputs& both) const {
    const bool encoder = model().is_encoder_decoder();
    const at::Tensor free =
        run({.input_ids = rows[0]}, {.max_new_tokens = 10, .num_beams = 3}, nullptr).sequences;
    for (const double penalty : {-2.0, 0.0, 1.0, 3.0}) {
      for (const EarlyStopping stop :
           {EarlyStopping::no, EarlyStopping::yes, EarlyStopping::never}) {
        const GenerationConfig config{
            .max_new_tokens = 10,
            .num_beams = 3,
            .early_stopping = stop,
            .length_penalty = penalty,
            .num_return_sequences = 2,
            .eos_token_id = {{free[0][free.size(1) - 6].item<std::int64_t>(), 17}},
            .pad_token_id = 0};
        const auto cache = make_cache(GetParam());
        const Output output = run(both, config, cache.get());
        for (std::size_t row = 0; row < rows.size(); ++row) {
          const Output solo = run({.input_ids = rows[row]}, config, nullptr);
          const std::int64_t begin = encoder ? 1 : rows[row].size(1);
          const std::int64_t count = solo.sequences.size(1) - begin;
          const at::Tensor made = output.sequences.narrow(0, std::int64_t(2 * row), 2)
                                      .narrow(1, encoder ? 1 : both.input_ids.size(1), count);
          const at::Tensor expected = solo.sequences.narrow(1, begin, count);
          EXPECT_TRUE(made.equal(expected)) << made << expected;
          // In float32, that is: a penalty of -2 makes them hundreds.
          const at::Tensor scale = solo.sequences_scores->abs().clamp_min(1);
          EXPECT_LT(testing::difference(
                        output.sequences_scores->narrow(0, std::int64_t(2 * row), 2).div(scale),
                        solo.sequences_scores->div(scale)),
                    1e-4);
        }
      }
    }
  }
};

TEST_P(BeamCaches, F28F43CachedEqualsUncachedAndTheCacheGoesOn) {
  const std::int64_t stride = testing::sweep_count(5, 1);
  for (std::int64_t tokens = 1; tokens <= 24; tokens += stride) {
    const std::int64_t beams = 2 + tokens % 4;
    GenerationConfig config{
        .max_new_tokens = tokens, .num_beams = beams, .num_return_sequences = 1 + tokens % 2};
    const auto seed = static_cast<std::uint64_t>(tokens);
    expect_held({.input_ids = random_ids(1, 1 + tokens % 9, seed)}, config);
    config.prefill_chunk_size = 2;
    config.use_cache = true;
    const auto cache = make_cache(GetParam());
    const Inputs inputs{.input_ids = random_ids(2, 5, seed)};
    const at::Tensor in_pieces = generate(model(), inputs, config, cache.get()).sequences;
    config.prefill_chunk_size.reset();
    EXPECT_TRUE(in_pieces.equal(run(inputs, config, nullptr).sequences));
    expect_held(inputs, config);
  }
}

// Texts that end at different lengths, of which the shorter ones are followed by padding.
TEST_P(BeamCaches, F28TextsOfDifferentLengthsAreHeldWithPadding) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Inputs inputs{.input_ids = random_ids(1, 7, seed)};
    GenerationConfig config{.max_new_tokens = 12,
                            .num_beams = 4,
                            .length_penalty = 0,
                            .num_return_sequences = 3,
                            .pad_token_id = 0};
    const at::Tensor free = run(inputs, config, nullptr).sequences;
    const std::int64_t begin = free.size(1) - 12;
    config.eos_token_id = {
        {free[0][begin + 4].item<std::int64_t>(), free[1][begin + 6].item<std::int64_t>()}};
    for (const EarlyStopping stop : {EarlyStopping::no, EarlyStopping::yes, EarlyStopping::never}) {
      config.early_stopping = stop;
      expect_held(inputs, config);
    }
  }
}

// Prompts of these lengths, the shorter one padded on the decoder's or the encoder's side.
Inputs padded_pair(const at::Tensor& a, const at::Tensor& b, bool on_the_right) {
  const std::int64_t columns = std::max(a.size(1), b.size(1));
  at::Tensor ids = at::zeros({2, columns}, at::kLong), mask = at::zeros({2, columns}, at::kLong);
  for (const auto& [row, text] : {std::pair{0L, a}, std::pair{1L, b}}) {
    const std::int64_t first = on_the_right ? 0 : columns - text.size(1);
    ids[row].narrow(0, first, text.size(1)).copy_(text[0]);
    mask[row].narrow(0, first, text.size(1)).fill_(1);
  }
  return {.input_ids = ids, .attention_mask = mask};
}

TEST_P(BeamCaches, F41RowsOfAPaddedBatchAreTheirSoloRuns) {
  struct Pair {
    std::int64_t a, b;  // tokens
  };
  std::vector<Pair> pairs = {{9, 3}, {4, 7}, {1, 6}, {5, 5}, {12, 2}, {8, 1}, {3, 10}, {6, 7}};
  pairs.resize(std::size_t(testing::sweep_count(3, std::int64_t(pairs.size()))));
  const bool right = model().is_encoder_decoder();
  std::uint64_t seed = 4;
  for (const Pair& pair : pairs) {
    const at::Tensor a = random_ids(1, pair.a, seed++), b = random_ids(1, pair.b, seed++);
    SCOPED_TRACE(c10::str("prompts of ", pair.a, " and ", pair.b));
    expect_solo_runs({a, b}, padded_pair(a, b, right));
  }
}

// Prompts are done at different times: their beams leave the batch, and their texts come back to
// the cache.
TEST_P(BeamCaches, F30DonePromptsLeaveAndComeBack) {
  const Inputs inputs = three_prompts(model().is_encoder_decoder());
  const auto cache = make_cache(GetParam());
  const Output plain = run(inputs, three_prompts_config(), nullptr);
  const Output cached = run(inputs, three_prompts_config(), cache.get());
  ASSERT_TRUE(cached.sequences.equal(plain.sequences)) << cached.sequences << plain.sequences;
  const std::int64_t given = cached.sequences.size(1) - 8;
  for (std::int64_t prompt = 0; prompt < 3; ++prompt) {
    Inputs alone = inputs;
    alone.input_ids = inputs.input_ids.narrow(0, prompt, 1);
    if (inputs.decoder_input_ids.defined()) {
      alone.decoder_input_ids = inputs.decoder_input_ids.narrow(0, prompt, 1);
    }
    const Output solo = run(alone, three_prompts_config(), nullptr);
    const std::int64_t made = kPromptEnds[static_cast<std::size_t>(prompt)];
    const at::Tensor rows = cached.sequences.narrow(0, 2 * prompt, 2);
    EXPECT_TRUE(rows.narrow(1, 0, given + made).equal(solo.sequences)) << rows << solo.sequences;
    EXPECT_TRUE(rows.narrow(1, given + made, 8 - made).eq(0).all().item<bool>());
    const at::Tensor scores = cached.sequences_scores->narrow(0, 2 * prompt, 2);
    EXPECT_LT(testing::difference(scores, *solo.sequences_scores), 1e-4);
  }
  EXPECT_EQ(cache->batch_size(), 6);
  EXPECT_TRUE(cache->history().ids().equal(all_but_last(cached.sequences)));
  expect_like_a_new_one(*cache, inputs);
}

// What throws leaves the cache with the prompt, not with beams.
TEST_P(BeamCaches, AFailureLeavesThePrompt) {
  const Inputs inputs{.input_ids = random_ids(2, 5, 3),
                      .logits_processors = {std::make_shared<FailingProcessor>(6)}};
  const GenerationConfig config{.max_new_tokens = 12, .num_beams = 3};
  const auto cache = make_cache(GetParam());
  EXPECT_THROW(run(inputs, config, cache.get()), std::runtime_error);
  EXPECT_EQ(cache->batch_size(), 2);
  EXPECT_EQ(cache->get_seq_length(), model().is_encoder_decoder() ? 1 : 5);
  const Inputs again{.input_ids = inputs.input_ids};
  EXPECT_TRUE(
      run(again, config, cache.get()).sequences.equal(run(again, config, nullptr).sequences));
}

// Also once beams have left.
TEST_P(BeamCaches, AFailureBehindDonePromptsLeavesThePrompts) {
  Inputs inputs = three_prompts(model().is_encoder_decoder());
  const auto cache = make_cache(GetParam());
  for (const int call : {5, 7}) {
    inputs.logits_processors = {std::make_shared<FailingProcessor>(call)};
    EXPECT_THROW(run(inputs, three_prompts_config(), cache.get()), std::runtime_error);
    EXPECT_EQ(cache->batch_size(), 3);
    EXPECT_EQ(cache->get_seq_length(), model().is_encoder_decoder() ? 2 : 5);
  }
  inputs.logits_processors.clear();
  EXPECT_TRUE(run(inputs, three_prompts_config(), cache.get())
                  .sequences.equal(run(inputs, three_prompts_config(), nullptr).sequences));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BeamCaches,
    ::testing::Values(Kind{"llama", "dynamic"}, Kind{"llama", "static"}, Kind{"mistral", "dynamic"},
                      Kind{"mistral", "static"}, Kind{"gemma3_text", "dynamic"},
                      Kind{"gemma3_text", "static"}, Kind{"llama4_text", "dynamic"},
                      Kind{"phi3_longrope", "dynamic"}, Kind{"lfm2", "dynamic"},
                      Kind{"lfm2", "static"}, Kind{"mamba2", "dynamic"}, Kind{"jamba", "dynamic"},
                      Kind{"qwen3_next", "dynamic"}, Kind{"t5", "dynamic"}, Kind{"t5", "static"}),
    ::testing::PrintToStringParamName());

// A cached prefix is kept, and its rows are those of the prompts.
TEST(BeamCaching, BeamsGoOnFromACache) {
  const CausalLM& model = checkpoint("llama");
  const at::Tensor ids = random_ids(1, 12, 6);
  const GenerationConfig config{.max_new_tokens = 6, .num_beams = 3};
  const at::Tensor expected = generate(model, {.input_ids = ids}, config).sequences;
  DynamicCache cache(model.config());
  model.forward({.input_ids = ids.narrow(1, 0, 8)}, &cache);
  Output output = generate(model, {.input_ids = ids}, config, &cache);
  EXPECT_TRUE(output.sequences.equal(expected));
  EXPECT_EQ(output.timings.prefill_tokens, 4);
  // A declared continuation: the last token of the text and one more.
  const at::Tensor tail = at::cat({expected.narrow(1, 17, 1), ids_tensor({{9}})}, 1);
  output = generate(model, {.input_ids = tail, .continuation = true}, config, &cache);
  const at::Tensor whole = at::cat({expected, ids_tensor({{9}})}, 1);
  const at::Tensor again = generate(model, {.input_ids = whole}, config).sequences;
  EXPECT_TRUE(output.sequences.equal(again.narrow(1, 17, again.size(1) - 17)));
  cache.batch_repeat_interleave(3);
  EXPECT_THAT(refusal<ValueError>([&] { generate(model, {.input_ids = whole}, config, &cache); }),
              HasSubstr("the cache holds 3 rows, but 1 texts are to be gone on with"));
}

}  // namespace
}  // namespace kvcache
