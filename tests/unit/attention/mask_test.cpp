#include "kvcache/attention/mask.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kvcache/retention/retention.h"

namespace kvcache {
namespace {

using Kind = AttentionMask::Kind;

// The definition, query by query and column by column.
bool may_see(const Visible& visible, std::int64_t query, std::int64_t key,
             const std::vector<bool>& valid) {
  const auto real = [&](std::int64_t p) { return valid[static_cast<std::size_t>(p)]; };
  if (!real(query)) return key == query;
  if (key > query || !real(key)) return false;
  if (visible.window && key <= query - *visible.window) return false;
  if (visible.chunk) {
    std::int64_t first_real = 0;
    while (!real(first_real)) ++first_real;
    const auto chunk = [&](std::int64_t p) { return (p - first_real) / *visible.chunk; };
    if (key < first_real || chunk(key) != chunk(query)) return false;
  }
  return true;
}

at::Tensor expected_mask(const MaskInput& input, const std::vector<std::vector<bool>>& valid) {
  const auto batch = static_cast<std::int64_t>(valid.size());
  at::Tensor result = at::zeros({batch, 1, input.tokens, input.visible.length}, at::kBool);
  auto out = result.accessor<bool, 4>();
  for (std::int64_t row = 0; row < batch; ++row) {
    for (std::int64_t i = 0; i < input.tokens; ++i) {
      for (std::int64_t column = 0; column < input.visible.length; ++column) {
        const std::int64_t key = input.visible.offset + column;
        const bool there = key < input.seen + input.tokens;
        out[row][0][i][column] = there && may_see(input.visible, input.seen + i, key,
                                                  valid[static_cast<std::size_t>(row)]);
      }
    }
  }
  return result;
}

// A mask as the dense tensor it stands for.
at::Tensor spelled_out(const AttentionMask& mask, const MaskInput& input, std::int64_t batch) {
  const std::vector<std::int64_t> shape{batch, 1, input.tokens, input.visible.length};
  switch (mask.kind) {
    case Kind::none:
      return at::ones(shape, at::kBool);
    case Kind::causal:
      EXPECT_EQ(input.tokens, input.visible.length);
      return at::ones(shape, at::kBool).tril();
    case Kind::dense:
      break;
  }
  return mask.allowed.expand(shape);
}

at::Tensor as_tensor(const std::vector<std::vector<bool>>& valid) {
  at::Tensor result = at::zeros(
      {static_cast<std::int64_t>(valid.size()), static_cast<std::int64_t>(valid[0].size())},
      at::kBool);
  for (std::size_t r = 0; r < valid.size(); ++r) {
    for (std::size_t i = 0; i < valid[r].size(); ++i) {
      result[static_cast<std::int64_t>(r)][static_cast<std::int64_t>(i)] = bool(valid[r][i]);
    }
  }
  return result;
}

std::vector<Retention> retentions() {
  std::vector<Retention> all{Retention::full()};
  for (std::int64_t size = 1; size <= 5; ++size) {
    all.push_back(Retention::sliding(size));
    all.push_back(Retention::chunked(size));
  }
  return all;
}

// Rows of `columns` tokens: the first all real, the second with `pads` to the left, the third with
// one more pad in the middle.
std::vector<std::vector<bool>> padded_rows(std::int64_t columns, std::int64_t pads) {
  const auto n = static_cast<std::size_t>(columns), p = static_cast<std::size_t>(pads);
  std::vector<std::vector<bool>> rows(3, std::vector<bool>(n, true));
  for (std::size_t i = 0; i < p; ++i) rows[1][i] = rows[2][i] = false;
  rows[2][(n + p) / 2 < n ? (n + p) / 2 : n - 1] = false;
  return rows;
}

TEST(Mask, EqualsTheDefinitionOverAllSmallCases) {
  for (const Retention& retention : retentions()) {
    for (std::int64_t seen = 0; seen <= 9; ++seen) {
      for (std::int64_t tokens = 1; tokens <= 6; ++tokens) {
        MaskInput input{.visible = retention.visible(seen, tokens), .seen = seen, .tokens = tokens};
        const std::vector<std::vector<bool>> real{
            std::vector<bool>(static_cast<std::size_t>(seen + tokens), true)};
        ASSERT_TRUE(spelled_out(make_mask(input), input, 1).equal(expected_mask(input, real)))
            << "seen " << seen << ", tokens " << tokens;
        for (std::int64_t pads = 0; pads <= seen + tokens; ++pads) {
          const auto valid = padded_rows(seen + tokens, pads);
          input.valid = as_tensor(valid);
          ASSERT_TRUE(spelled_out(make_mask(input), input, 3).equal(expected_mask(input, valid)))
              << "seen " << seen << ", tokens " << tokens << ", pads " << pads;
        }
      }
    }
  }
}

// A storage of fixed size hands out its empty slots as well; no query sees them.
TEST(Mask, HidesColumnsBeyondTheStep) {
  MaskInput input{.visible = {.length = 8}, .seen = 3, .tokens = 2};
  const std::vector<std::vector<bool>> real{std::vector<bool>(5, true)};
  EXPECT_TRUE(make_mask(input).allowed.equal(expected_mask(input, real)));
  input.tokens = 1;
  EXPECT_EQ(make_mask(input).kind, Kind::dense);
}

Kind kind_of(const Retention& retention, std::int64_t seen, std::int64_t tokens) {
  return make_mask({.visible = retention.visible(seen, tokens), .seen = seen, .tokens = tokens})
      .kind;
}

TEST(Mask, IsNotBuiltWhereNoneIsNeeded) {
  EXPECT_EQ(kind_of(Retention::full(), 0, 9), Kind::causal);
  EXPECT_EQ(kind_of(Retention::full(), 100, 1), Kind::none);
  EXPECT_EQ(kind_of(Retention::full(), 3, 2), Kind::dense);
  EXPECT_EQ(kind_of(Retention::sliding(4), 0, 4), Kind::causal);
  EXPECT_EQ(kind_of(Retention::sliding(4), 0, 5), Kind::dense);
  EXPECT_EQ(kind_of(Retention::sliding(4), 100, 1), Kind::none);
  EXPECT_EQ(kind_of(Retention::chunked(4), 0, 4), Kind::causal);
  EXPECT_EQ(kind_of(Retention::chunked(4), 0, 5), Kind::dense);
  EXPECT_EQ(kind_of(Retention::chunked(4), 7, 1), Kind::none);   // sees 4 .. 7, and is handed them
  EXPECT_EQ(kind_of(Retention::chunked(4), 8, 1), Kind::dense);  // sees only itself
}

TEST(Mask, PaddingThatHasLeftTheWindowNeedsNoMask) {
  const at::Tensor valid = at::ones({2, 9}, at::kBool);
  valid[1].narrow(0, 0, 3).fill_(false);
  MaskInput input{.visible = Retention::sliding(4).visible(8, 1), .seen = 8, .tokens = 1};
  input.valid = valid;
  EXPECT_EQ(make_mask(input).kind, Kind::none);
}

std::vector<std::int64_t> seen_by(const AttentionMask& mask, std::int64_t offset,
                                  std::int64_t query, std::int64_t row = 0) {
  std::vector<std::int64_t> columns;
  const at::Tensor allowed = mask.allowed[mask.allowed.size(0) == 1 ? 0 : row][0][query];
  for (std::int64_t i = 0; i < allowed.size(0); ++i) {
    if (allowed[i].item<bool>()) columns.push_back(offset + i);
  }
  return columns;
}

TEST(Mask, F10_ChunksStartAtTheirBoundary) {
  const AttentionMask mask =
      make_mask({.visible = Retention::chunked(4).visible(0, 10), .seen = 0, .tokens = 10});
  EXPECT_EQ(seen_by(mask, 0, 7), (std::vector<std::int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(seen_by(mask, 0, 8), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(seen_by(mask, 0, 9), (std::vector<std::int64_t>{8, 9}));
}

TEST(Mask, F10_ChunksCountFromTheFirstRealToken) {
  MaskInput input{.visible = Retention::chunked(4).visible(0, 8), .seen = 0, .tokens = 8};
  const at::Tensor valid = at::ones({2, 8}, at::kBool);
  valid[1].narrow(0, 0, 3).fill_(false);
  input.valid = valid;
  const AttentionMask mask = make_mask(input);
  EXPECT_EQ(seen_by(mask, 0, 5, 0), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(seen_by(mask, 0, 5, 1), (std::vector<std::int64_t>{3, 4, 5}));
  EXPECT_EQ(seen_by(mask, 0, 7, 1), (std::vector<std::int64_t>{7}));
  EXPECT_EQ(seen_by(mask, 0, 1, 1), (std::vector<std::int64_t>{1}));  // padding sees itself
}

TEST(Mask, F13_ASecondPrefillPieceIsAsWideAsWhatWasSeen) {
  const AttentionMask mask =
      make_mask({.visible = Retention::full().visible(128, 128), .seen = 128, .tokens = 128});
  ASSERT_EQ(mask.kind, Kind::dense);
  EXPECT_EQ(mask.allowed.sizes(), (std::vector<std::int64_t>{1, 1, 128, 256}));
  EXPECT_TRUE(mask.allowed[0][0].equal(at::ones({128, 256}, at::kBool).tril(128)));
}

TEST(Mask, RefusesWhatDoesNotFit) {
  EXPECT_THROW(make_mask({.visible = {.length = 2}, .seen = 2, .tokens = 1}), ValueError);
  EXPECT_THROW(make_mask({.visible = {.length = 2}, .seen = 0, .tokens = 0}), ValueError);
  EXPECT_THROW(
      make_mask(
          {.visible = {.length = 3}, .seen = 2, .tokens = 1, .valid = at::ones({1, 2}, at::kBool)}),
      ValueError);
  EXPECT_THROW(
      make_mask(
          {.visible = {.length = 3}, .seen = 2, .tokens = 1, .valid = at::ones({1, 3}, at::kLong)}),
      ValueError);
}

}  // namespace
}  // namespace kvcache
