// The operator kvcache::segment_attention on a GPU against the plain form on the CPU.
#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "kvcache/core/errors.h"
#include "tests/support/segment_attention.h"

namespace kvcache {
namespace {

using testing::AttentionShape;
using testing::RandomView;

const at::Device kGpu(at::kCUDA, 0);

TEST(GpuSegmentAttention, IsThere) { EXPECT_TRUE(detail::has_segment_attention(kGpu)); }

TEST(GpuSegmentAttention, EqualsThePlainFormOverShapes) {
  testing::expect_plain_form_over_shapes(kGpu);
}

TEST(GpuSegmentAttention, EqualsThePlainFormAtEveryLength) {
  testing::expect_plain_form_at_every_length(kGpu);
}

TEST(GpuSegmentAttention, EqualsThePlainFormAtTheEdges) {
  testing::expect_plain_form_at_the_edges(kGpu);
}

TEST(GpuSegmentAttention, EqualsThePlainFormAfterCrops) {
  testing::expect_plain_form_after_crops(kGpu);
}

TEST(GpuSegmentAttention, RowsThatSeeNothingAreNaNAndChangeNoOthers) {
  testing::expect_blind_rows_alone_are_nan(kGpu);
}

// Blocks of threads of more than 256 columns.
TEST(GpuSegmentAttention, EqualsThePlainFormOverALongHistory) {
  const AttentionShape shape{
      .batch = 1, .kv_heads = 1, .group = 4, .tokens = 2, .key_dim = 64, .value_dim = 64};
  RandomView view(shape, {.device = kGpu});
  view.add_packed({.nbits = 4}, 40000);
  view.add_dense(200);
  testing::expect_plain_form(view, {.masked = true});
}

// The calls of a decode step on a stream of its own, one after the other without waiting.
TEST(GpuSegmentAttention, RunsOnTheCurrentStream) {
  const AttentionShape shape{
      .batch = 2, .kv_heads = 2, .group = 2, .tokens = 1, .key_dim = 64, .value_dim = 64};
  RandomView random(shape, {.device = kGpu});
  random.add_packed({.nbits = 4, .axis_key = -1, .q_group_size = 8}, 3000);
  random.add_dense(70);
  const at::Tensor query = at::randn({2, 4, 1, 64});
  const at::Tensor right = detail::segmented_attention(query, testing::on_cpu(random.view()), {},
                                                       {.scale = 0.125, .softcap = std::nullopt});
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  const c10::Stream side = gpu.getStreamFromGlobalPool(kGpu);
  gpu.synchronizeDevice(0);
  at::Tensor results;
  {
    const c10::StreamGuard guard(side);
    const at::Tensor there = query.to(kGpu);
    for (int i = 0; i < 50; ++i) {
      // Freed and taken again while earlier calls may still run.
      results = detail::segment_attention(there.clone(), random.view(), {.scale = 0.125});
    }
  }
  side.synchronize();
  EXPECT_CLOSE(results.cpu(), right, 2e-5);
}

TEST(GpuSegmentAttention, RefusesSegmentsOnOtherDevices) {
  const AttentionShape shape{
      .batch = 1, .kv_heads = 1, .group = 1, .tokens = 1, .key_dim = 64, .value_dim = 64};
  RandomView here(shape, {.device = kGpu}), elsewhere(shape, {});
  here.add_packed({.nbits = 4}, 50);
  elsewhere.add_packed({.nbits = 4}, 50);
  const at::Tensor query = at::randn({1, 1, 1, 64});
  EXPECT_NO_THROW(detail::segment_attention(query.to(kGpu), here.view(), {}));
  EXPECT_THROW(detail::segment_attention(query.to(kGpu), elsewhere.view(), {}), ValueError);
  EXPECT_THROW(detail::segment_attention(query, here.view(), {}), ValueError);
  const at::Tensor mask = at::ones({1, 1, 1, 50}, at::kBool);
  EXPECT_THROW(detail::segment_attention(query.to(kGpu), here.view(), {.allowed = mask}),
               ValueError);
}

}  // namespace
}  // namespace kvcache
