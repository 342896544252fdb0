// Rows of text with and without padding.
#include "kvcache/generation/token_rows.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

TokenRows rows_of(const Rows& ids, const Rows& valid) {
  return {ids_tensor(ids), ids_tensor(valid).to(at::kBool)};
}

TEST(TokenRows, WithoutAMaskEveryTokenCounts) {
  const TokenRows text{ids_tensor({{1, 2, 3}, {4, 5, 6}})};
  EXPECT_EQ(text.length(), 3);
  EXPECT_TRUE(text.lengths().equal(ids_tensor({{3, 3}})[0]));
  EXPECT_TRUE(text.right_aligned().is_same(text.ids));
  EXPECT_TRUE(text.row(1).equal(ids_tensor({{4, 5, 6}})[0]));
}

TEST(TokenRows, PaddingMovesToTheFrontWhereverItIs) {
  const TokenRows text = rows_of({{9, 9, 1, 2}, {3, 9, 4, 9}, {5, 6, 7, 8}, {9, 9, 9, 9}},
                                 {{0, 0, 1, 1}, {1, 0, 1, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}});
  EXPECT_EQ(text.length(), 4);
  EXPECT_TRUE(text.lengths().equal(ids_tensor({{2, 2, 4, 0}})[0]));
  const at::Tensor aligned =
      ids_tensor({{-1, -1, 1, 2}, {-1, -1, 3, 4}, {5, 6, 7, 8}, {-1, -1, -1, -1}});
  EXPECT_TRUE(text.right_aligned().equal(aligned)) << text.right_aligned();
  EXPECT_TRUE(text.row(1).equal(ids_tensor({{3, 4}})[0]));
}

}  // namespace
}  // namespace kvcache::testing
