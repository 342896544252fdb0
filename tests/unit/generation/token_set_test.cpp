// Checked ids of a vocabulary.
#include "kvcache/generation/token_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using detail::TokenSet;
using ::testing::HasSubstr;

TEST(TokenSet, IsAMaskAndAListOfIds) {
  TokenSet set("field", {3, 1, 3}, 5);
  const at::Tensor scores = at::zeros({2, 5});
  EXPECT_TRUE(set.mask(scores).equal(ids_tensor({{0, 1, 0, 1, 0}})[0].to(at::kBool)));
  EXPECT_TRUE(set.ids(scores).equal(ids_tensor({{3, 1, 3}})[0]));
}

TEST(TokenSet, RefusesIdsOutsideOfTheVocabulary) {
  for (const std::int64_t id : {-1, 5}) {
    EXPECT_THAT(refusal<ValueError>([&] {
                  TokenSet("suppress_tokens", {1, id}, 5);
                }),
                HasSubstr("suppress_tokens holds " + std::to_string(id) +
                          ", which is no token of a vocabulary of 5"));
  }
  EXPECT_THAT(refusal<ValueError>([] { TokenSet("suppress_tokens", {}, 5); }),
              HasSubstr("suppress_tokens is empty"));
}

TEST(TokenSet, RefusesScoresOfAnotherVocabulary) {
  TokenSet set("field", {3}, 5);
  EXPECT_THAT(refusal<ValueError>([&] { set.mask(at::zeros({2, 6})); }), HasSubstr("[rows, 5]"));
  EXPECT_THAT(refusal<ValueError>([&] { set.ids(at::zeros({5})); }), HasSubstr("[rows, 5]"));
}

}  // namespace
}  // namespace kvcache::testing
