#include "kvcache/core/history.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcache {
namespace {

using Table = std::vector<std::vector<std::int64_t>>;

at::Tensor table(const Table& rows, at::ScalarType dtype = at::kLong) {
  at::Tensor result = at::zeros({std::int64_t(rows.size()), std::int64_t(rows[0].size())}, dtype);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    result[std::int64_t(row)].copy_(at::tensor(rows[row], at::kLong));
  }
  return result;
}

at::Tensor mask(const Table& rows) { return table(rows, at::kBool); }

void add(History& history, History::Staged staged) {
  history.stage(std::move(staged));
  history.publish();
}

// Rows 5 6 7 8 and pad pad 9 10.
History padded() {
  History history;
  add(history, {.batch = 2,
                .tokens = 4,
                .ids = table({{5, 6, 7, 8}, {0, 0, 9, 10}}),
                .valid = mask({{1, 1, 1, 1}, {0, 0, 1, 1}})});
  return history;
}

TEST(History, StartsKnownAndEmpty) {
  const History history;
  EXPECT_TRUE(history.known());
  EXPECT_TRUE(history.all_valid());
  EXPECT_EQ(history.ids().sizes(), at::IntArrayRef({0, 0}));
  EXPECT_TRUE(at::equal(history.positions({.batch = 2, .tokens = 2}), table({{0, 1}, {0, 1}})));
}

TEST(History, KeepsIdsPaddingAndPositions) {
  const History history = padded();
  EXPECT_FALSE(history.all_valid());
  EXPECT_TRUE(at::equal(history.ids(), table({{5, 6, 7, 8}, {0, 0, 9, 10}})));
  EXPECT_TRUE(at::equal(history.valid(), mask({{1, 1, 1, 1}, {0, 0, 1, 1}})));
  EXPECT_TRUE(at::equal(history.positions({.batch = 2, .tokens = 2}), table({{4, 5}, {2, 3}})));
  EXPECT_TRUE(
      at::equal(history.positions({.batch = 2, .tokens = 3, .valid = mask({{0, 1, 1}, {1, 0, 1}})}),
                table({{0, 4, 5}, {2, 0, 3}})));
}

// A mask that covers the past replaces its padding, for positions at once.
TEST(History, PastPaddingIsReplaced) {
  History history = padded();
  const History::Staged step{.batch = 2,
                             .tokens = 1,
                             .ids = table({{1}, {2}}),
                             .past_valid = mask({{0, 1, 1, 1}, {1, 1, 1, 1}})};
  EXPECT_TRUE(at::equal(history.positions(step), table({{3}, {4}})));
  add(history, step);
  EXPECT_TRUE(at::equal(history.valid(), mask({{0, 1, 1, 1, 1}, {1, 1, 1, 1, 1}})));
  EXPECT_TRUE(at::equal(history.positions({.batch = 2, .tokens = 1}), table({{4}, {5}})));
}

TEST(History, DiscardForgetsTheStep) {
  History history;
  history.stage({.batch = 3, .tokens = 2});
  history.discard();
  EXPECT_EQ(history.batch(), 0);
  add(history, {.batch = 1, .tokens = 1, .ids = table({{4}})});
  EXPECT_EQ(history.batch(), 1);
  history.publish();  // nothing staged
  EXPECT_EQ(history.seen(), 1);
}

TEST(History, CommonPrefixIgnoresIdsUnderPadding) {
  const History history = padded();
  const at::Tensor valid = mask({{1, 1, 1, 1, 1}, {0, 0, 1, 1, 1}});
  EXPECT_EQ(history.common_prefix(table({{5, 6, 7, 8, 1}, {33, 33, 9, 10, 1}}), valid), 4);
  EXPECT_EQ(history.common_prefix(table({{5, 6, 7, 8, 1}, {0, 0, 9, 11, 1}}), valid), 3);
  EXPECT_EQ(history.common_prefix(table({{5, 6}, {0, 0}}), mask({{1, 1}, {0, 0}})), 2);
  EXPECT_EQ(history.common_prefix(table({{5, 6}, {0, 0}}), std::nullopt),
            0);                                                              // pads are not tokens
  EXPECT_EQ(history.common_prefix(table({{5, 6, 7, 8}}), std::nullopt), 0);  // other batch
}

TEST(History, UnknownTokensUntilTheyAreTakenBack) {
  History history = padded();
  add(history, {.batch = 2, .tokens = 3});
  add(history, {.batch = 2, .tokens = 1, .ids = table({{1}, {1}})});
  EXPECT_FALSE(history.known());
  try {
    history.common_prefix(table({{5}, {0}}), std::nullopt);
    FAIL();
  } catch (const RuntimeError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("4 of its 8 tokens"));
  }
  EXPECT_THROW(history.ids(), RuntimeError);
  history.crop(3);
  EXPECT_FALSE(history.known());
  history.crop(1);
  EXPECT_TRUE(history.known());
  EXPECT_TRUE(at::equal(history.ids(), table({{5, 6, 7, 8}, {0, 0, 9, 10}})));
}

TEST(History, CropAndSelectKeepCounts) {
  History history = padded();
  history.select({1, 1, 0});
  history.crop(1);
  EXPECT_TRUE(at::equal(history.ids(), table({{0, 0, 9}, {0, 0, 9}, {5, 6, 7}})));
  EXPECT_TRUE(at::equal(history.positions({.batch = 3, .tokens = 1}), table({{1}, {1}, {3}})));
  history.reset();
  EXPECT_EQ(history.batch(), 0);
  EXPECT_EQ(history.seen(), 0);
}

}  // namespace
}  // namespace kvcache
