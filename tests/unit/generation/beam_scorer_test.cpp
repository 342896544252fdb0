// The bookkeeping of beam search on numbers that can be read.
#include "generation/beam_scorer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/refusal.h"

namespace kvcache::detail {
namespace {

using kvcache::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> tokens_of(const std::vector<Candidate>& path) {
  std::vector<std::int64_t> result;
  for (const Candidate& made : path) result.push_back(made.token);
  return result;
}

std::vector<float> scores_of(const BeamScorer& scorer) {
  const at::Tensor scores = scorer.scores().flatten();
  return {scores.const_data_ptr<float>(), scores.const_data_ptr<float>() + scores.numel()};
}

Candidates of_one_row(std::vector<Candidate> list) {
  const auto each = static_cast<std::int64_t>(list.size());
  return {.list = std::move(list), .each = each};
}

TEST(BeamCandidates, AreTheBestOfAllBeamsOfARow) {
  const at::Tensor scores =
      at::tensor({-1.F, -5.F, -3.F, -2.F, -9.F, -4.F, -7.F, -8.F, -6.F, -3.F, -2.F, -1.F})
          .view({2, 2, 3});
  const Candidates best = best_candidates(scores, 3);
  EXPECT_EQ(best.each, 3);
  EXPECT_TRUE(best.beams().equal(at::tensor({0L, 1L, 0L, 3L, 3L, 3L}, at::kLong)));
  EXPECT_TRUE(best.tokens().equal(at::tensor({0L, 0L, 2L, 2L, 1L, 0L}, at::kLong)));
  EXPECT_EQ(best.list[1].score, -2);
}

TEST(BeamCandidates, DrawnOnesAreDifferentAndSorted) {
  const at::Tensor scores = at::linspace(-2, 0, 12).view({1, 2, 6});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Candidates drawn = drawn_candidates(scores, 8, make_generator(seed));
    std::set<std::int64_t> places;
    for (std::size_t i = 0; i < 8; ++i) {
      const Candidate& one = drawn.list[i];
      places.insert(one.beam * 6 + one.token);
      EXPECT_EQ(one.score, scores[0][one.beam][one.token].item<float>());
      EXPECT_GE(drawn.list[i == 0 ? 0 : i - 1].score, one.score);
    }
    EXPECT_EQ(places.size(), 8U);
  }
}

TEST(BeamCandidates, NothingToChooseFromNamesTheRow) {
  at::Tensor scores = at::zeros({3, 2, 4});
  const auto says = [&] {
    return refusal<RuntimeError>([&] { (void)best_candidates(scores, 2); });
  };
  scores[2][1][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(says(), HasSubstr("the scores of row 2 leave no token to choose"));
  EXPECT_THAT(refusal<RuntimeError>([&] { (void)drawn_candidates(scores, 2, make_generator(1)); }),
              HasSubstr("the scores of row 2 leave no token to choose"));
  scores[1].fill_(-std::numeric_limits<float>::infinity());
  EXPECT_THAT(says(), HasSubstr("the scores of row 1 leave no token to choose"));
}

// All beams begin with the same text, of which there must be no copies.
TEST(BeamScorer, F42TheFirstStepCountsOneBeam) {
  BeamScorer scorer({.rows = 1, .beams = 3, .new_tokens = 5});
  EXPECT_THAT(scores_of(scorer), ElementsAre(0, -1e9F, -1e9F));
  // Two texts for three beams: the third only keeps its place.
  EXPECT_TRUE(scorer.take(of_one_row({{-1, 0, 7}, {-2, 0, 8}, {-1e9F, 1, 7}, {-1e9F, 2, 7}}),
                          {false, false, false, false}));
  EXPECT_THAT(scores_of(scorer), ElementsAre(-1, -2, -1e9F));
  EXPECT_EQ(scorer.last_beams()[0].item<std::int64_t>(), 0);
  EXPECT_EQ(scorer.last_tokens()[1].item<std::int64_t>(), 8);
}

TEST(BeamScorer, ScoresAreSumsOverTheNewTokensToThePowerOfThePenalty) {
  for (const double penalty : {-2.0, 0.0, 1.0, 3.0}) {
    BeamScorer scorer({.rows = 1, .beams = 2, .new_tokens = 2, .length_penalty = penalty});
    scorer.take(of_one_row({{-1, 0, 4}, {-2, 0, 5}, {-3, 0, 6}, {-4, 0, 7}}),
                {false, true, false, false});
    EXPECT_FALSE(scorer.take(of_one_row({{-1.5, 0, 1}, {-3.5, 1, 2}, {-4, 0, 3}, {-5, 1, 3}}),
                             {true, true, true, true}));
    std::vector<float> expected = {-2, static_cast<float>(-1.5 / std::pow(2, penalty)),
                                   static_cast<float>(-3.5 / std::pow(2, penalty))};
    std::sort(expected.rbegin(), expected.rend());
    ASSERT_EQ(scorer.finished(0).size(), 2U);
    EXPECT_FLOAT_EQ(scorer.finished(0)[0].score, expected[0]);
    EXPECT_FLOAT_EQ(scorer.finished(0)[1].score, expected[1]);
  }
}

// Candidates beyond the beams are there for those that end, and may not end a text themselves.
TEST(BeamScorer, OnlyTheFirstCandidatesEndTexts) {
  BeamScorer scorer({.rows = 1, .beams = 2, .new_tokens = 9});
  EXPECT_TRUE(scorer.take(of_one_row({{-1, 0, 2}, {-2, 0, 4}, {-3, 0, 3}, {-4, 0, 5}}),
                          {true, false, true, false}));
  ASSERT_EQ(scorer.finished(0).size(), 1U);
  EXPECT_EQ(scorer.finished(0)[0].token, 2);
  EXPECT_TRUE(scorer.last_tokens().equal(at::tensor({4L, 5L}, at::kLong)));
}

TEST(BeamScorer, EarlyStoppingDecidesWhenABetterTextIsNotWaitedFor) {
  // Two complete texts of score -2 and -3; the best running beam has the sum -2.5 after one token.
  const auto goes_on = [](EarlyStopping stop, double penalty, float running) {
    BeamScorer scorer({.rows = 1,
                       .beams = 2,
                       .new_tokens = 10,
                       .length_penalty = penalty,
                       .early_stopping = stop});
    return scorer.take(of_one_row({{-2, 0, 1}, {-3, 0, 2}, {running, 0, 3}, {-9, 0, 4}}),
                       {true, true, false, false});
  };
  EXPECT_FALSE(goes_on(EarlyStopping::yes, 1, -2.5));
  EXPECT_TRUE(goes_on(EarlyStopping::no, 1, -2.5));
  EXPECT_FALSE(goes_on(EarlyStopping::no, 1, -3));
  EXPECT_FALSE(goes_on(EarlyStopping::no, 1, -3.5));
  // At ten tokens -25 would be -2.5.
  EXPECT_TRUE(goes_on(EarlyStopping::never, 1, -25));
  EXPECT_FALSE(goes_on(EarlyStopping::never, 1, -31));
  EXPECT_FALSE(goes_on(EarlyStopping::never, 0, -3.5));
  EXPECT_TRUE(goes_on(EarlyStopping::never, -1, -2.5));
}

TEST(BeamScorer, F41ARowThatIsDoneStaysAsItIs) {
  BeamScorer scorer({.rows = 2, .beams = 2, .new_tokens = 9, .early_stopping = EarlyStopping::yes});
  EXPECT_TRUE(scorer.take({.list = {{-1, 0, 2},
                                    {-2, 0, 2},
                                    {-3, 0, 4},
                                    {-4, 0, 5},
                                    {-1, 2, 6},
                                    {-2, 2, 7},
                                    {-3, 2, 8},
                                    {-4, 2, 9}},
                           .each = 4},
                          {true, true, false, false, false, false, false, false}));
  EXPECT_TRUE(scorer.done(0));
  EXPECT_FALSE(scorer.done(1));
  EXPECT_FALSE(scorer.take({.list = {{0, 0, 2},
                                     {0, 1, 2},
                                     {0, 0, 2},
                                     {0, 1, 2},
                                     {-2, 2, 2},
                                     {-3, 3, 2},
                                     {-5, 2, 8},
                                     {-6, 2, 9}},
                            .each = 4},
                           {true, true, true, true, true, true, false, false}));
  EXPECT_EQ(scorer.finished(0)[0].score, -1);
  EXPECT_EQ(scorer.finished(0)[1].score, -2);
  EXPECT_THAT(tokens_of(scorer.path(scorer.finished(1)[1])), ElementsAre(7, 2));
}

TEST(BeamScorer, PathsGoThroughTheBeamsOfEachStep) {
  BeamScorer scorer({.rows = 1, .beams = 2, .new_tokens = 3});
  const std::vector<bool> none(4, false);
  scorer.take(of_one_row({{-1, 0, 10}, {-2, 0, 11}, {-3, 0, 12}, {-4, 0, 13}}), none);
  scorer.take(of_one_row({{-2, 1, 20}, {-3, 0, 21}, {-4, 1, 22}, {-5, 0, 23}}), none);
  EXPECT_THAT(tokens_of(scorer.path(0, 2)), ElementsAre(11, 20));
  EXPECT_THAT(tokens_of(scorer.path(1, 2)), ElementsAre(10, 21));
  scorer.take(of_one_row({{-4, 1, 30}, {-5, 0, 31}, {-6, 0, 32}, {-7, 1, 33}}),
              std::vector<bool>(4, true));
  EXPECT_THAT(tokens_of(scorer.path(scorer.finished(0)[0])), ElementsAre(10, 21, 30));
  EXPECT_THAT(tokens_of(scorer.path(scorer.finished(0)[1])), ElementsAre(11, 20, 31));
}

TEST(BeamScorer, ARowWithoutATextNamesItself) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  BeamScorer scorer({.rows = 1, .beams = 2, .new_tokens = 3});
  EXPECT_THAT(refusal<RuntimeError>([&] {
                scorer.take(of_one_row({{-1e9F, 1, 2}, {kNone, 0, 2}}), {false, false});
              }),
              HasSubstr("row 0"));
}

}  // namespace
}  // namespace kvcache::detail
