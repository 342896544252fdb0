// What generate() does apart from choosing the right tokens: inputs, lengths, ends, output.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::difference;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

const CausalLM& model() { return testing::checkpoint("llama"); }

at::Tensor prompt() { return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}}); }

std::string refused(const Inputs& inputs, const GenerationConfig& config = {.max_new_tokens = 2}) {
  return refusal<ValueError>([&] { generate(model(), inputs, config); });
}

TEST(Generate, F33PaddingIsNotGuessedFromIds) {
  const at::Tensor ids = ids_tensor({{5, 0, 7, 8}});
  const GenerationConfig config{
      .max_new_tokens = 4, .eos_token_id = {{2}}, .pad_token_id = 0, .output_logits = true};
  const Output bare = generate(model(), {.input_ids = ids}, config);
  const Output masked =
      generate(model(), {.input_ids = ids, .attention_mask = at::ones_like(ids)}, config);
  EXPECT_TRUE(bare.sequences.equal(masked.sequences));
  EXPECT_TRUE(bare.logits->equal(*masked.logits));
  const at::Tensor whole = model().forward({.input_ids = ids, .logits_to_keep = 1});
  EXPECT_LT(difference(bare.logits->select(1, 0), whole.select(1, 0)), 1e-5);
}

TEST(Generate, F44SettingsThatLeaveOneTokenEqualGreedy) {
  const at::Tensor greedy =
      generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 8}).sequences;
  const auto sampled = [](GenerationConfig config) {
    config.max_new_tokens = 8;
    config.do_sample = true;
    return generate(model(), {.input_ids = prompt(), .generator = make_generator(1)}, config)
        .sequences;
  };
  EXPECT_TRUE(sampled({.top_k = 0, .top_p = 0.0}).equal(greedy));
  EXPECT_TRUE(sampled({.top_k = 0, .top_p = 1e-9}).equal(greedy));
  EXPECT_TRUE(sampled({.top_k = 0, .min_p = 1.0}).equal(greedy));
  EXPECT_TRUE(sampled({.top_k = 1}).equal(greedy));
  EXPECT_TRUE(sampled({.top_k = 1000}).equal(sampled({.top_k = 64})));
}

TEST(Generate, F44CountsOfSequences) {
  EXPECT_THAT(refused({.input_ids = prompt()}, {.num_return_sequences = 2}),
              HasSubstr("num_return_sequences"));
  const GenerationConfig config{.max_new_tokens = 3, .do_sample = true, .num_return_sequences = 3};
  const Inputs inputs{.input_ids = at::cat({prompt(), prompt().add(1)}),
                      .generator = make_generator(1)};
  const at::Tensor rows = generate(model(), inputs, config).sequences;
  ASSERT_EQ(rows.size(0), 6);
  EXPECT_TRUE(rows[2].narrow(0, 0, 9).equal(prompt()[0]));
  EXPECT_TRUE(rows[3].narrow(0, 0, 9).equal(prompt()[0].add(1)));
}

TEST(Generate, F50NoTokensAreAClearError) {
  const std::string message = refused({.input_ids = at::zeros({1, 0}, at::kLong)});
  EXPECT_THAT(message, HasSubstr("at least one row and one token, but have shape [1, 0]"));
  EXPECT_THAT(refused({.input_ids = at::zeros({0, 4}, at::kLong)}), HasSubstr("at least one row"));
}

TEST(Generate, F50NoIdsStartFromBos) {
  const GenerationConfig config{.max_new_tokens = 4, .bos_token_id = 1};
  const at::Tensor made = generate(model(), {}, config).sequences;
  EXPECT_TRUE(made.equal(generate(model(), {.input_ids = ids_tensor({{1}})}, config).sequences));
  EXPECT_THAT(refused({}), HasSubstr("bos_token_id"));
}

TEST(Generate, InputsThatCannotWorkAreRefused) {
  const at::Tensor ids = prompt();
  EXPECT_THAT(refused({.input_ids = ids[0]}), HasSubstr("[batch, tokens]"));
  EXPECT_THAT(refused({.input_ids = ids.to(at::kFloat)}), HasSubstr("int64 or int32"));
  EXPECT_THAT(refused({.input_ids = ids.sub(6)}), HasSubstr("hold -1"));
  EXPECT_THAT(refused({.input_ids = ids, .attention_mask = at::ones({1, 8}, at::kLong)}),
              HasSubstr("attention_mask must have the shape of input_ids"));
  EXPECT_THAT(refused({.input_ids = ids, .attention_mask = at::ones({2, 9}, at::kLong)}),
              HasSubstr("attention_mask must have the shape"));
  EXPECT_THAT(refused({.input_ids = ids, .attention_mask = at::ones({1, 9})}),
              HasSubstr("integers or bools"));
  EXPECT_THAT(refused({.input_ids = ids, .attention_mask = at::full({1, 9}, 2, at::kLong)}),
              HasSubstr("0 for padding and 1"));
  at::Tensor right_padded = at::ones({1, 9}, at::kLong);
  right_padded[0][8] = 0;
  EXPECT_THAT(refused({.input_ids = ids, .attention_mask = right_padded}),
              HasSubstr("row 0 of attention_mask ends in padding"));
  EXPECT_THAT(refused({.input_ids = ids, .continuation = true}, {.use_cache = false}),
              HasSubstr("continuation needs the cache"));
  EXPECT_THAT(refused({.input_ids = ids}, {.max_new_tokens = 2, .do_sample = true}),
              HasSubstr("generator"));
}

TEST(Generate, Int32IdsAndBoolMasksWork) {
  const GenerationConfig config{.max_new_tokens = 3};
  const at::Tensor right = generate(model(), {.input_ids = prompt()}, config).sequences;
  const Inputs inputs{.input_ids = prompt().to(at::kInt),
                      .attention_mask = at::ones({1, 9}, at::kBool)};
  EXPECT_TRUE(generate(model(), inputs, config).sequences.equal(right));
}

TEST(Generate, LengthsByDefaultAndBySetting) {
  const auto length = [](const GenerationConfig& config) {
    return generate(model(), {.input_ids = prompt()}, config).sequences.size(1);
  };
  EXPECT_EQ(length({}), 29);
  EXPECT_EQ(length({.max_length = 12}), 12);
  EXPECT_EQ(length({.max_length = 12, .max_new_tokens = 1}), 10);
  EXPECT_THAT(refused({.input_ids = prompt()}, {.max_length = 9}),
              HasSubstr("no room within max_length = 9"));
}

TEST(Generate, TheLastTokenEndsARowAndIsKept) {
  const at::Tensor free_run =
      generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 8}).sequences;
  const auto third = free_run[0][11].item<std::int64_t>();
  const Output output =
      generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 8, .eos_token_id = {{third}}});
  EXPECT_TRUE(output.sequences.equal(free_run.narrow(1, 0, output.sequences.size(1))));
  EXPECT_EQ(output.sequences[0][-1].item<std::int64_t>(), third);
  EXPECT_LE(output.sequences.size(1), 12);
}

TEST(Generate, WithoutAPadTokenTheFirstEosFills) {
  const Inputs two{.input_ids = at::cat({prompt(), prompt().add(1)})};
  const at::Tensor free_run = generate(model(), two, {.max_new_tokens = 6}).sequences;
  const auto end = free_run[0][9].item<std::int64_t>();
  ASSERT_NE(free_run[1][9].item<std::int64_t>(), end);
  const at::Tensor made =
      generate(model(), two, {.max_new_tokens = 6, .eos_token_id = {{end, 63}}}).sequences;
  EXPECT_TRUE(made[0].narrow(0, 9, made.size(1) - 9).eq(end).all().item<bool>()) << made;
}

class StopAt final : public StoppingCriterion {
 public:
  explicit StopAt(std::int64_t length) : length_(length) {}
  at::Tensor complete(const TokenRows& text) override {
    at::Tensor rows = at::zeros({text.ids.size(0)}, at::kBool);
    rows[0].fill_(text.length() >= length_);
    return rows;
  }

 private:
  std::int64_t length_;
};

TEST(Generate, ACriterionOfOnesOwnEndsRows) {
  Inputs inputs{.input_ids = prompt(), .stopping_criteria = {std::make_shared<StopAt>(12)}};
  EXPECT_EQ(generate(model(), inputs, {.max_new_tokens = 8}).sequences.size(1), 12);
  inputs.input_ids = at::cat({prompt(), prompt().add(1)});
  EXPECT_THAT(refused(inputs), HasSubstr("pad_token_id must say what fills them"));
  const at::Tensor made =
      generate(model(), inputs, {.max_new_tokens = 6, .pad_token_id = 40}).sequences;
  ASSERT_EQ(made.size(1), 15);
  EXPECT_TRUE(made[0].narrow(0, 12, 3).eq(40).all().item<bool>()) << made;
}

class Only final : public LogitsProcessor {
 public:
  explicit Only(std::int64_t id) : id_(id) {}
  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    at::Tensor one = at::full_like(scores, -INFINITY);
    one.select(1, id_).fill_(0);
    return one;
  }

 private:
  std::int64_t id_;
};

TEST(Generate, LogitsAreTheModelsBeforeAnyProcessor) {
  const Inputs inputs{.input_ids = prompt(), .logits_processors = {std::make_shared<Only>(17)}};
  const Output output = generate(model(), inputs, {.max_new_tokens = 3, .output_logits = true});
  EXPECT_TRUE(output.sequences[0].narrow(0, 9, 3).eq(17).all().item<bool>());
  ASSERT_EQ(output.logits->sizes(), (at::IntArrayRef{1, 3, 64}));
  const at::Tensor whole = model().forward({.input_ids = output.sequences});
  EXPECT_LT(difference(*output.logits, whole.narrow(1, 8, 3)), 1e-4);
  EXPECT_EQ(output.logits->scalar_type(), at::kFloat);
}

TEST(Generate, TokensAreStreamedAsTheyAreMade) {
  struct Recorder final : Streamer {
    void put(const at::Tensor& tokens) override { steps.push_back(tokens.clone()); }
    void end() override { ++ends; }
    std::vector<at::Tensor> steps;
    int ends = 0;
  } recorder;
  const Inputs inputs{.input_ids = at::cat({prompt(), prompt().add(1)}), .streamer = &recorder};
  const Output output = generate(model(), inputs, {.max_new_tokens = 5});
  EXPECT_EQ(recorder.ends, 1);
  EXPECT_TRUE(at::stack(recorder.steps, 1).equal(output.sequences.narrow(1, 9, 5)));
}

TEST(Generate, TextLongerThanTheFirstBuffer) {
  const GenerationConfig config{.max_new_tokens = 100};
  const at::Tensor cached = generate(model(), {.input_ids = prompt()}, config).sequences;
  ASSERT_EQ(cached.size(1), 109);
  const Output two = generate(model(), {.input_ids = at::cat({prompt(), prompt().add(1)})},
                              {.max_new_tokens = 100,
                               .eos_token_id = {{cached[0][20].item<std::int64_t>()}},
                               .pad_token_id = 0});
  EXPECT_TRUE(two.sequences[0].narrow(0, 0, 21).equal(cached[0].narrow(0, 0, 21)));
}

TEST(Generate, TheOutputIsOrdinaryAndCounted) {
  const Output output = generate(model(), {.input_ids = prompt()}, {.max_new_tokens = 4});
  EXPECT_FALSE(output.sequences.is_inference());
  EXPECT_FALSE(output.logits.has_value());
  EXPECT_EQ(output.cache->kind(), "dynamic");
  EXPECT_EQ(output.timings.prefill_tokens, 9);
  EXPECT_EQ(output.timings.decode_tokens, 3);
  EXPECT_GT(output.timings.prefill_s, 0);
  EXPECT_GT(output.timings.decode_s, 0);
}

TEST(Generate, ARunnerServesManyCalls) {
  Runner runner(model());
  const at::Tensor first =
      runner.generate({.input_ids = prompt()}, {.max_new_tokens = 4}).sequences;
  EXPECT_TRUE(
      runner.generate({.input_ids = prompt()}, {.max_new_tokens = 4}).sequences.equal(first));
}

}  // namespace
}  // namespace kvcache
