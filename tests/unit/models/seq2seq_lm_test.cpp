// Models with an encoder: relative positions, loading, and steps of both sides together.
#include "kvcache/models/seq2seq_lm.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/models/registry.h"
#include "kvcache/models/relative_position_bias.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

const std::string kT5 = KVCACHE_TEST_DATA_DIR "/parity/seq2seq_checkpoints/t5";

std::vector<std::int64_t> buckets_of(const std::vector<std::int64_t>& distances,
                                     const RelativeBuckets& buckets) {
  const at::Tensor result = relative_buckets(at::tensor(distances, at::kLong), buckets);
  const auto* data = result.const_data_ptr<std::int64_t>();
  return {data, data + result.numel()};
}

// 8 buckets of one direction: distances 0 to 3, then 4 to 5, 6 to 8, 9 to 13, and beyond.
TEST(RelativePositions, NearOnesAreExactAndFarOnesLogarithmic) {
  const RelativeBuckets backward{.count = 8, .max_distance = 20};
  EXPECT_THAT(buckets_of({2, 1, 0, -1, -2, -3, -4, -5}, backward),
              ElementsAre(0, 0, 0, 1, 2, 3, 4, 4));
  EXPECT_THAT(buckets_of({-6, -8, -9, -13, -14, -19, -20, -1000}, backward),
              ElementsAre(5, 5, 6, 6, 7, 7, 7, 7));
  const RelativeBuckets both{.count = 8, .max_distance = 20, .bidirectional = true};
  EXPECT_THAT(buckets_of({0, -1, -2, -6, -7, -100}, both), ElementsAre(0, 1, 2, 2, 3, 3));
  EXPECT_THAT(buckets_of({1, 2, 6, 7, 100}, both), ElementsAre(5, 6, 6, 7, 7));
}

TEST(RelativePositions, BiasesAreThoseOfTheirBucketsInEachRow) {
  const at::Tensor weight = at::arange(16, at::kFloat).view({8, 2});  // bucket b: 2 b and 2 b + 1
  const RelativePositionBias bias(weight, {.count = 8, .max_distance = 20});
  const at::Tensor result = bias(ids_tensor({{3}, {1}}), ids_tensor({{0, 1, 2, 3}, {0, 0, 0, 1}}));
  EXPECT_EQ(result.sizes(), (std::vector<std::int64_t>{2, 2, 1, 4}));
  EXPECT_TRUE(result[0][1][0].equal(at::tensor({7.F, 5.F, 3.F, 1.F})));
  EXPECT_TRUE(result[1][0][0].equal(at::tensor({2.F, 2.F, 2.F, 0.F})));
  EXPECT_THROW(RelativePositionBias(weight, {.count = 8, .max_distance = 4}), ValueError);
}

TEST(Seq2Seq, FamiliesSayWhichSortTheyAre) {
  EXPECT_TRUE(load_language_model(kT5)->is_encoder_decoder());
  EXPECT_FALSE(
      load_language_model(KVCACHE_TEST_DATA_DIR "/parity/checkpoints/llama")->is_encoder_decoder());
  EXPECT_THAT(refusal<ValueError>([] { load_model(kT5); }),
              AllOf(HasSubstr("t5"), HasSubstr("load_seq2seq_model")));
  EXPECT_THAT(refusal<ValueError>(
                  [] { load_seq2seq_model(KVCACHE_TEST_DATA_DIR "/parity/checkpoints/llama"); }),
              AllOf(HasSubstr("llama"), HasSubstr("load_model")));
}

TEST(Seq2Seq, ConfigsAreReadInBothStyles) {
  const ModelConfig plain = ModelConfig::from_folder(kT5);
  EXPECT_EQ(plain.num_hidden_layers, 2);
  EXPECT_EQ(plain.seq2seq->encoder_layers, 2);
  EXPECT_FALSE(plain.seq2seq->gated_mlp);
  EXPECT_TRUE(plain.seq2seq->scale_outputs);
  EXPECT_EQ(plain.seq2seq->decoder_start_token_id, 0);
  const ModelConfig gated =
      ModelConfig::from_folder(KVCACHE_TEST_DATA_DIR "/parity/seq2seq_checkpoints/t5_gated");
  EXPECT_EQ(gated.hidden_act, "gelu_new");
  EXPECT_TRUE(gated.seq2seq->gated_mlp);
  EXPECT_FALSE(gated.seq2seq->scale_outputs);
  EXPECT_EQ(gated.seq2seq->encoder_layers, 3);
  EXPECT_EQ(gated.num_hidden_layers, 2);
  EXPECT_EQ(gated.layer_specs().size(), 2U);
  EXPECT_EQ(gated.head_dim, 12);
}

TEST(Seq2Seq, AFailedStepLeavesBothSidesAsTheyWere) {
  const auto model = load_seq2seq_model(kT5);
  EncoderDecoderCache cache(model->config());
  const EncoderInput encoder{ids_tensor({{5, 6, 7}})};
  const at::Tensor first = ids_tensor({{0, 4}});
  EXPECT_THROW(model->forward({.input_ids = first}, &cache), ValueError);
  EXPECT_THROW(
      model->forward({.input_ids = first, .encoder = EncoderInput{ids_tensor({{64}})}}, &cache),
      ValueError);
  EXPECT_EQ(cache.nbytes(), 0);
  const at::Tensor expected =
      model->forward({.input_ids = ids_tensor({{0, 4, 9}}), .encoder = encoder});
  model->forward({.input_ids = first, .encoder = encoder}, &cache);
  EXPECT_THROW(model->forward({.input_ids = ids_tensor({{9}}),
                               .encoder = EncoderInput{ids_tensor({{5, 6, 8}})}},
                              &cache),
               ValueError);
  EXPECT_CLOSE(model->forward({.input_ids = ids_tensor({{9}})}, &cache), expected.narrow(1, 2, 1),
               1e-5);
  DynamicCache plain(model->config());
  EXPECT_THROW(model->forward({.input_ids = first, .encoder = encoder}, &plain), ValueError);
  EXPECT_EQ(plain.nbytes(), 0);
  EXPECT_THROW(testing::checkpoint("llama").forward({.input_ids = first, .encoder = encoder}),
               ValueError);
}

// Row 1 holds padding between its tokens, as a row that had ended before others.
TEST(Seq2Seq, F30DistancesCountRealTokens) {
  const auto model = load_seq2seq_model(kT5);
  const EncoderInput encoder{ids_tensor({{5, 6, 7}, {12, 13, 14}})};
  const at::Tensor ids = ids_tensor({{0, 4, 9, 30, 31, 8}, {0, 4, 2, 2, 2, 9}});
  const at::Tensor mask = ids_tensor({{1, 1, 1, 1, 1, 1}, {1, 1, 0, 0, 0, 1}});
  const at::Tensor both =
      model->forward({.input_ids = ids, .attention_mask = mask, .encoder = encoder});
  const at::Tensor alone = model->forward(
      {.input_ids = ids_tensor({{0, 4, 9}}), .encoder = EncoderInput{ids_tensor({{12, 13, 14}})}});
  EXPECT_CLOSE(both[1][5], alone[0][2], 1e-4);
}

TEST(Seq2Seq, NarrowDtypesFollowTheWideOne) {
  const ForwardInput input{.input_ids = ids_tensor({{0, 21, 7, 40}}),
                           .encoder = EncoderInput{ids_tensor({{5, 6, 7, 8, 9}})}};
  const at::Tensor expected = load_seq2seq_model(kT5)->forward(input);
  const double range = (expected.max() - expected.min()).item<double>();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = load_seq2seq_model(kT5, {.dtype = dtype})->forward(input);
    EXPECT_EQ(logits.scalar_type(), dtype);
    EXPECT_CLOSE(logits, expected, range / (dtype == at::kHalf ? 50 : 8)) << dtype;
  }
}

}  // namespace
}  // namespace kvcache
