// No n-gram twice: padding, growing and other texts, and a plain search as the reference.
#include "kvcache/generation/ngram_processors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "tests/support/processors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using Text = std::vector<std::int64_t>;

constexpr std::int64_t kVocab = 8;

std::set<std::int64_t> forbidden_in(const at::Tensor& row) {
  std::set<std::int64_t> ids;
  for (std::int64_t i = 0; i < row.numel(); ++i) {
    if (row[i].item<float>() == -INFINITY) ids.insert(i);
  }
  return ids;
}

std::set<std::int64_t> searched(const Text& text, std::int64_t size) {
  std::set<std::int64_t> ids;
  const auto length = static_cast<std::int64_t>(text.size());
  for (std::int64_t i = 0; i + size <= length; ++i) {
    if (std::equal(text.end() - (size - 1), text.end(), text.begin() + i)) {
      ids.insert(text[static_cast<std::size_t>(i + size - 1)]);
    }
  }
  return ids;
}

// Rows of any lengths with padding wherever `random` puts it.
TokenRows scattered(const std::vector<Text>& rows, std::int64_t columns, std::uint64_t seed) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto count = static_cast<std::int64_t>(rows.size());
  TokenRows text{at::full({count, columns}, 3, at::kLong), at::zeros({count, columns}, at::kBool)};
  for (std::int64_t r = 0; r < count; ++r) {
    const Text& row = rows[static_cast<std::size_t>(r)];
    const auto length = static_cast<std::int64_t>(row.size());
    const at::Tensor places =
        std::get<0>(at::randperm(columns, random).narrow(0, 0, length).sort());
    text.ids[r].index_copy_(0, places, at::tensor(row, at::kLong));
    text.valid->select(0, r).index_fill_(0, places, true);
  }
  return text;
}

TEST(NoRepeatNGram, ForbidsWhatASearchFindsUnderAnyPadding) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(5);
  for (std::uint64_t round = 0; round < 60; ++round) {
    std::vector<Text> rows;
    for (std::int64_t length : {1, 3, 9, 14}) {
      const at::Tensor ids = at::randint(4, {length}, random, at::kLong);
      rows.emplace_back(ids.data_ptr<std::int64_t>(), ids.data_ptr<std::int64_t>() + length);
    }
    const TokenRows text = scattered(rows, 16, round);
    for (std::int64_t size = 1; size <= 5; ++size) {
      const at::Tensor after =
          NoRepeatNGramLogitsProcessor(size).process(text, at::zeros({4, kVocab}));
      for (std::size_t r = 0; r < rows.size(); ++r) {
        EXPECT_EQ(forbidden_in(after[static_cast<std::int64_t>(r)]), searched(rows[r], size))
            << "row " << r << ", size " << size << ", round " << round;
      }
    }
  }
}

TEST(NoRepeatNGram, F34PadsAreNoTokens) {
  const at::Tensor ids = ids_tensor({{40, 40, 40, 40, 40, 40, 12, 13, 14}});
  const at::Tensor after =
      NoRepeatNGramLogitsProcessor(1).process({ids, ids.ne(40)}, at::zeros({1, 64}));
  EXPECT_EQ(forbidden_in(after[0]), (std::set<std::int64_t>{12, 13, 14}));
}

TEST(NoRepeatNGram, FollowsTextsThatGrowShrinkAndChangePlaces) {
  NoRepeatNGramLogitsProcessor twice(2);
  const at::Tensor scores = at::zeros({2, kVocab});
  const auto forbidden = [&](const Rows& rows) {
    const at::Tensor after = twice.process(texts(rows), scores);
    return std::vector{forbidden_in(after[0]), forbidden_in(after[1])};
  };
  using Sets = std::vector<std::set<std::int64_t>>;
  EXPECT_EQ(forbidden({{1, 2, 1}, {3, 4, 5}}), (Sets{{2}, {}}));
  EXPECT_EQ(forbidden({{1, 2, 1, 3}, {3, 4, 5, 3}}), (Sets{{}, {4}}));
  EXPECT_EQ(forbidden({{3, 4, 5, 3}, {1, 2, 1, 3}}), (Sets{{4}, {}}));
  EXPECT_EQ(forbidden({{3, 4}, {1, 1}}), (Sets{{}, {1}}));
  EXPECT_EQ(forbidden({{3, 4, 3, 5, 3}, {1, 1, 2, 1, 1}}), (Sets{{4, 5}, {1, 2}}));
}

TEST(NoRepeatNGram, CanForbidEverything) {
  const at::Tensor after =
      NoRepeatNGramLogitsProcessor(1).process(texts({{0, 1, 2}}), at::zeros({1, 3}));
  EXPECT_TRUE(after.isinf().all().item<bool>());
}

}  // namespace
}  // namespace kvcache::testing
