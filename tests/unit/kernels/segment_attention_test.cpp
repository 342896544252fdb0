// The operator kvcache::segment_attention on the CPU, and what it refuses.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "tests/support/segment_attention.h"

namespace kvcache {
namespace {

using testing::AttentionShape;
using testing::RandomView;

TEST(SegmentAttention, EqualsThePlainFormOverShapes) {
  testing::expect_plain_form_over_shapes(at::kCPU);
}

TEST(SegmentAttention, EqualsThePlainFormAtEveryLength) {
  testing::expect_plain_form_at_every_length(at::kCPU);
}

TEST(SegmentAttention, EqualsThePlainFormAtTheEdges) {
  testing::expect_plain_form_at_the_edges(at::kCPU);
}

TEST(SegmentAttention, EqualsThePlainFormAfterCrops) {
  testing::expect_plain_form_after_crops(at::kCPU);
}

TEST(SegmentAttention, RowsThatSeeNothingAreNaNAndChangeNoOthers) {
  testing::expect_blind_rows_alone_are_nan(at::kCPU);
}

// Results do not depend on how many threads there are.
TEST(SegmentAttention, IsTheSameOnAnyNumberOfThreads) {
  const AttentionShape shape{
      .batch = 1, .kv_heads = 1, .group = 4, .tokens = 1, .key_dim = 64, .value_dim = 64};
  RandomView view(shape, {});
  view.add_packed({.nbits = 4}, 5000);
  const at::Tensor query = at::randn({1, 4, 1, 64});
  const int threads = at::get_num_threads();
  const at::Tensor many = detail::segment_attention(query, view.view(), {.scale = 0.125});
  at::set_num_threads(1);
  const at::Tensor one = detail::segment_attention(query, view.view(), {.scale = 0.125});
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, many));
}

// Scales and offsets need not lie alike.
TEST(SegmentAttention, ReadsScalesAndOffsetsOfDifferentStrides) {
  const AttentionShape shape{
      .batch = 2, .kv_heads = 2, .group = 1, .tokens = 1, .key_dim = 64, .value_dim = 64};
  RandomView random(shape, {});
  random.add_packed({.nbits = 4, .q_group_size = 8}, 50);
  View view = random.view();
  PackedKeyValue packed = *view.segments[0].packed;
  packed.keys.offsets = packed.keys.offsets.transpose(1, 2).contiguous().transpose(1, 2);
  packed.values.scales = packed.values.scales.transpose(2, 3).contiguous().transpose(2, 3);
  view.segments[0].packed = std::make_shared<PackedKeyValue>(packed);
  const at::Tensor query = at::randn({2, 2, 1, 64});
  EXPECT_TRUE(at::equal(detail::segment_attention(query, view, {}),
                        detail::segment_attention(query, random.view(), {})));
}

TEST(SegmentAttention, RefusesWhatDoesNotFit) {
  const AttentionShape shape{
      .batch = 2, .kv_heads = 2, .group = 2, .tokens = 1, .key_dim = 64, .value_dim = 64};
  RandomView random(shape, {});
  random.add_packed({.nbits = 4}, 50);
  const auto attend = [&](at::IntArrayRef query, std::optional<at::Tensor> allowed = {}) {
    return detail::segment_attention(at::randn(query), random.view(), {.allowed = allowed});
  };
  EXPECT_NO_THROW(attend({2, 4, 1, 64}));
  EXPECT_THROW(attend({2, 4, 1, 32}), ValueError);  // head size
  EXPECT_THROW(attend({2, 3, 1, 64}), ValueError);  // heads
  EXPECT_THROW(attend({3, 4, 1, 64}), ValueError);  // batch
  EXPECT_THROW(attend({2, 4, 1, 64}, at::ones({2, 1, 1, 49}, at::kBool)), ValueError);
  EXPECT_THROW(attend({2, 4, 1, 64}, at::ones({2, 1, 1, 50})), ValueError);
}

// Called by its name, as from Python, with any numbers.
TEST(SegmentAttention, RefusesLayoutsThatThereAreNot) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("kvcache::segment_attention", "")
                      .typed<at::Tensor(const at::Tensor&, at::TensorList, at::IntArrayRef,
                                        const std::optional<at::Tensor>&, double, double)>();
  // Packed; kind, bits, head size, channels and tokens of a group, rotated, groups.
  const std::vector<std::int64_t> right = {1, 0, 4, 64, 64, 1, 0, 0};
  const auto attend = [&](std::size_t at, std::int64_t number) {
    std::vector<std::int64_t> numbers = right;
    numbers.insert(numbers.end(), right.begin(), right.end());
    numbers[at] = number;
    const at::Tensor codes = at::zeros({1, 1, 5, 32}, at::kByte), scales = at::ones({1, 1, 5, 1});
    return op.call(at::ones({1, 1, 1, 64}), {codes, scales, scales, codes, scales, scales}, numbers,
                   std::nullopt, 1, 0);
  };
  EXPECT_NO_THROW(attend(0, 1));
  const std::vector<std::pair<std::size_t, std::int64_t>> wrong = {
      {1, 3}, {1, -1}, {2, 5},  {2, 0}, {3, 4096},
      {3, 0}, {4, 0},  {4, 65}, {5, 0}, {7, 1'000'000'000}};
  for (const auto& [at, number] : wrong) {
    EXPECT_THROW(attend(at, number), ValueError) << at << " " << number;
  }
}

TEST(SegmentAttention, IsThereOnTheCpuAndNotOnAGpuThatNothingWasLinkedFor) {
  EXPECT_TRUE(detail::has_segment_attention(at::kCPU));
  EXPECT_TRUE(detail::has_segment_attention(at::kMeta));
  EXPECT_FALSE(detail::has_segment_attention(at::kCUDA));
}

}  // namespace
}  // namespace kvcache
