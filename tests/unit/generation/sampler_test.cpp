#include "kvcache/generation/sampler.h"
#include "tests/support/refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

at::Tensor scores_with(double value) {
  at::Tensor scores = at::zeros({3, 8});
  scores[1].fill_(value);
  return scores;
}

TEST(Sampler, TheBestIsTheFirstOfTheHighest) {
  at::Tensor scores = at::zeros({2, 8});
  scores[0][5] = scores[0][6] = 1;
  EXPECT_TRUE(choose_best(scores).equal(at::tensor({5, 0}, at::kLong)));
}

TEST(Sampler, OneSeedDrawsOneSequence) {
  const at::Tensor scores = at::zeros({2, 64});
  at::Generator a = make_generator(3), b = make_generator(3), c = make_generator(4);
  bool differs = false;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor drawn = choose_at_random(scores, a);
    EXPECT_TRUE(drawn.equal(choose_at_random(scores, b)));
    differs |= !drawn.equal(choose_at_random(scores, c));
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, DrawsOnlyWhatIsLeft) {
  at::Tensor scores = at::full({1, 8}, -INFINITY);
  scores[0][6] = -3;
  at::Generator generator = make_generator(0);
  EXPECT_EQ(choose_at_random(scores, generator).item<std::int64_t>(), 6);
}

TEST(Sampler, RowsThatLeaveNothingAreNamed) {
  at::Generator generator = make_generator(0);
  for (const double value : {double{NAN}, double{INFINITY}, double{-INFINITY}}) {
    const at::Tensor scores = scores_with(value);
    EXPECT_THAT(refusal<RuntimeError>([&] { choose_best(scores); }), HasSubstr("scores of row 1"));
    EXPECT_THAT(refusal<RuntimeError>([&] { choose_at_random(scores, generator); }),
                HasSubstr("scores of row 1"));
  }
}

TEST(Sampler, OneNanInARowIsEnough) {
  at::Generator generator = make_generator(0);
  at::Tensor scores = at::zeros({2, 8});
  scores[0][3] = NAN;
  EXPECT_THAT(refusal<RuntimeError>([&] { choose_best(scores); }), HasSubstr("row 0"));
  EXPECT_THAT(refusal<RuntimeError>([&] { choose_at_random(scores, generator); }),
              HasSubstr("row 0"));
}

}  // namespace
}  // namespace kvcache
