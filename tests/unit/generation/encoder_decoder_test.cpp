// generate() with a model that has an encoder: what is kept of a cache that is passed in, how rows
// share the encoder's, and what is refused.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/ended_rows.h"
#include "tests/support/refusal.h"
#include "tests/support/stored.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

const Seq2SeqLM& model() {
  static const std::unique_ptr<Seq2SeqLM> loaded =
      load_seq2seq_model(KVCACHE_TEST_DATA_DIR "/parity/seq2seq_checkpoints/t5");
  return *loaded;
}

at::Tensor question() { return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}}); }
at::Tensor other_question() { return ids_tensor({{12, 13, 14, 20}}); }

GenerationConfig greedy(std::int64_t new_tokens) { return {.max_new_tokens = new_tokens}; }

at::Tensor uncached(const Inputs& inputs, std::int64_t new_tokens) {
  GenerationConfig config = greedy(new_tokens);
  config.use_cache = false;
  return generate(model(), inputs, config).sequences;
}

TEST(EncoderDecoderGenerate, TheSameQuestionAgainRunsNoEncoder) {
  EncoderDecoderCache cache(model().config());
  const Output first = generate(model(), {.input_ids = question()}, greedy(6), &cache);
  EXPECT_TRUE(first.sequences.equal(uncached({.input_ids = question()}, 6)));
  EXPECT_EQ(first.timings.prefill_tokens, 1 + 9);
  const void* keys = testing::stored(cache.cross_attention_cache())[0].keys.const_data_ptr();
  const Output again = generate(model(), {.input_ids = question()}, greedy(6), &cache);
  EXPECT_TRUE(again.sequences.equal(first.sequences));
  EXPECT_EQ(again.timings.prefill_tokens, 1);
  EXPECT_EQ(testing::stored(cache.cross_attention_cache())[0].keys.const_data_ptr(), keys);
  EXPECT_EQ(cache.get_seq_length(), 6);
}

TEST(EncoderDecoderGenerate, AnotherQuestionOnAUsedCacheIsAnsweredAfresh) {
  EncoderDecoderCache cache(model().config());
  generate(model(), {.input_ids = question()}, greedy(6), &cache);
  const Output other = generate(model(), {.input_ids = other_question()}, greedy(6), &cache);
  EXPECT_TRUE(other.sequences.equal(uncached({.input_ids = other_question()}, 6)));
  EXPECT_EQ(cache.cross_attention_cache().get_seq_length(), 4);
  Inputs padded{.input_ids = question()};  // the same ids, another mask
  generate(model(), padded, greedy(2), &cache);
  padded.attention_mask = ids_tensor({{1, 1, 1, 1, 1, 1, 1, 0, 0}});
  EXPECT_TRUE(generate(model(), padded, greedy(6), &cache).sequences.equal(uncached(padded, 6)));
}

TEST(EncoderDecoderGenerate, AnAnswerGoesOnFromDecoderIds) {
  EncoderDecoderCache cache(model().config());
  const at::Tensor begun = ids_tensor({{0, 21, 7}});
  const Inputs inputs{.input_ids = question(), .decoder_input_ids = begun};
  const at::Tensor whole = uncached(inputs, 8);
  EXPECT_TRUE(whole.narrow(1, 0, 3).equal(begun));
  const Output first = generate(model(), inputs, greedy(4), &cache);
  EXPECT_TRUE(first.sequences.equal(whole.narrow(1, 0, 7)));

  Inputs longer{.input_ids = question(), .decoder_input_ids = first.sequences};
  EXPECT_TRUE(generate(model(), longer, greedy(2), &cache).sequences.equal(whole.narrow(1, 0, 9)));
  EXPECT_EQ(cache.get_seq_length(), 8);

  const Inputs rest{.decoder_input_ids = whole.narrow(1, 8, 1), .continuation = true};
  EXPECT_TRUE(generate(model(), rest, greedy(2), &cache).sequences.equal(whole.narrow(1, 8, 3)));
  EXPECT_EQ(cache.get_seq_length(), 10);
}

TEST(EncoderDecoderGenerate, SeveralAnswersShareTheEncodersKeys) {
  Inputs inputs{.input_ids = at::cat({question().narrow(1, 0, 4), other_question()})};
  inputs.generator = make_generator(3);
  GenerationConfig config = greedy(5);
  config.do_sample = true;
  config.num_return_sequences = 3;
  const Output output = generate(model(), inputs, config);
  EXPECT_EQ(output.sequences.sizes(), (std::vector<std::int64_t>{6, 6}));
  const auto& cache = dynamic_cast<EncoderDecoderCache&>(*output.cache);
  EXPECT_EQ(cache.batch_size(), 6);
  EXPECT_EQ(cache.cross_attention_cache().batch_size(), 2);
}

// Rows 0 and 1 answer the first question, 2 and 3 the other one; they end after 2, 6, 4 and 6
// tokens.
class EndedAnswers : public ::testing::TestWithParam<const char*> {
 protected:
  using Numbers = std::vector<std::int64_t>;
  static constexpr std::int64_t kPad = 3;

  static std::unique_ptr<EncoderDecoderCache> new_cache() {
    if (GetParam() == std::string("Dynamic")) {
      return std::make_unique<EncoderDecoderCache>(model().config());
    }
    const auto layers = model().config().layer_specs();
    return std::make_unique<EncoderDecoderCache>(
        StaticCache(layers, {.max_cache_len = 24}),
        StaticCache(cross_attention_layers(layers), {.max_cache_len = 9}));
  }

  static at::Tensor questions() {
    return at::cat({question(), at::cat({other_question(), at::zeros({1, 5}, at::kLong)}, 1)});
  }
  static at::Tensor mask() {
    return ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 0, 0, 0, 0, 0}});
  }

  static Output sampled(const StoppingCriteria& ends, Cache* cache) {
    GenerationConfig config = greedy(6);
    config.do_sample = true;
    config.num_return_sequences = 2;
    config.pad_token_id = kPad;
    config.use_cache = cache != nullptr;
    config.encoder_repetition_penalty = 1.3;
    return generate(model(),
                    {.input_ids = questions(),
                     .attention_mask = mask(),
                     .generator = make_generator(3),
                     .stopping_criteria = ends},
                    config, cache);
  }
};

TEST_P(EndedAnswers, F30RowsLeaveAndComeBackWithTheirEncoderRows) {
  const Numbers ends = {2, 6, 4, 6};
  const at::Tensor whole = sampled({}, nullptr).sequences;
  const auto cache = new_cache();
  const Output output = sampled({std::make_shared<testing::EndAfter>(ends)}, cache.get());
  EXPECT_TRUE(output.sequences.equal(
      sampled({std::make_shared<testing::EndAfter>(ends)}, nullptr).sequences));
  EXPECT_EQ(output.timings.decode_tokens, 4 + 3 + 3 + 2 + 2);
  EXPECT_EQ(cache->batch_size(), 4);
  EXPECT_EQ(cache->cross_attention_cache().batch_size(), 2);
  at::Tensor turn = at::empty({4, 3}, at::kLong);
  testing::Rows texts;
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t own = 1 + ends[static_cast<std::size_t>(i)];
    EXPECT_TRUE(output.sequences[i].narrow(0, 0, own).equal(whole[i].narrow(0, 0, own))) << i;
    EXPECT_TRUE(output.sequences[i].narrow(0, own, 7 - own).eq(kPad).all().item<bool>()) << i;
    texts.push_back(testing::numbers_of(whole[i].narrow(0, 0, own)));
    EXPECT_EQ(testing::held_tokens(*cache, i),
              Numbers(texts.back().begin(), texts.back().end() - 1));
    turn[i].copy_(at::tensor({texts.back().back(), std::int64_t{30}, std::int64_t{31}}));
    texts.back().insert(texts.back().end(), {30, 31});
  }
  const at::Tensor next =
      generate(model(), {.decoder_input_ids = turn, .continuation = true}, greedy(4), cache.get())
          .sequences.narrow(1, 3, 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    const Inputs own{.input_ids = i < 2 ? question() : other_question()};
    EXPECT_EQ(testing::numbers_of(next[i]),
              testing::alone(model(), texts[static_cast<std::size_t>(i)], 4, own))
        << i;
  }
}

TEST_P(EndedAnswers, TheEncodersKeysStayWhereTheyAre) {
  const auto cache = new_cache();
  sampled({}, cache.get());
  const void* keys = testing::stored(cache->cross_attention_cache())[0].keys.const_data_ptr();
  sampled({std::make_shared<testing::EndAfter>(Numbers{2, 6, 4, 6})}, cache.get());
  EXPECT_EQ(testing::stored(cache->cross_attention_cache())[0].keys.const_data_ptr(), keys);
}

INSTANTIATE_TEST_SUITE_P(Caches, EndedAnswers, ::testing::Values("Dynamic", "Static"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST(EncoderDecoderGenerate, TheFirstTokenIsTheConfigs) {
  GenerationConfig config = greedy(2);
  EXPECT_EQ(generate(model(), {.input_ids = question()}, config).sequences[0][0].item<int>(), 0);
  config.decoder_start_token_id = 9;
  const at::Tensor made = generate(model(), {.input_ids = question()}, config).sequences;
  EXPECT_TRUE(
      made.equal(uncached({.input_ids = question(), .decoder_input_ids = ids_tensor({{9}})}, 2)));
  config.decoder_start_token_id = 64;
  EXPECT_THAT(refusal<ValueError>([&] { generate(model(), {.input_ids = question()}, config); }),
              HasSubstr("vocabulary of 64"));
}

TEST(EncoderDecoderGenerate, RefusesWhatDoesNotFit) {
  const auto refused = [](const Inputs& inputs, Cache* cache = nullptr) {
    return refusal<ValueError>([&] { generate(model(), inputs, greedy(2), cache); });
  };
  EXPECT_THAT(refused({}), HasSubstr("no input_ids for the encoder"));
  EXPECT_THAT(refused({.input_ids = question(), .decoder_input_ids = ids_tensor({{0}, {0}})}),
              AllOf(HasSubstr("2 rows"), HasSubstr("input_ids 1")));
  EXPECT_THAT(refused({.input_ids = question(), .attention_mask = at::zeros({1, 9})}),
              HasSubstr("attention_mask"));
  EXPECT_THAT(refused({.input_ids = question(), .attention_mask = at::zeros({1, 9}, at::kLong)}),
              HasSubstr("padding alone"));
  EXPECT_THAT(
      refused({.input_ids = question(), .decoder_attention_mask = at::ones({1, 1}, at::kLong)}),
      HasSubstr("no decoder_input_ids"));
  DynamicCache plain(model().config());
  EXPECT_THAT(refused({.input_ids = question()}, &plain),
              AllOf(HasSubstr("dynamic"), HasSubstr("EncoderDecoderCache")));
  EncoderDecoderCache empty(model().config());
  EXPECT_THAT(refused({.decoder_input_ids = ids_tensor({{0}}), .continuation = true}, &empty),
              HasSubstr("no encoder's keys"));
  EXPECT_THAT(refused({.input_ids = question(), .continuation = true}, &empty),
              HasSubstr("decoder_input_ids"));

  const CausalLM& llama = testing::checkpoint("llama");
  EncoderDecoderCache pair(llama.config());
  EXPECT_THAT(
      refusal<ValueError>([&] { generate(llama, {.input_ids = question()}, greedy(2), &pair); }),
      HasSubstr("no encoder"));
  EXPECT_THAT(refusal<ValueError>([&] {
                generate(llama, {.input_ids = question(), .decoder_input_ids = question()},
                         greedy(2));
              }),
              HasSubstr("decoder_input_ids"));
}

}  // namespace
}  // namespace kvcache
