// The operator over segments on the device: it runs there, queued, as all operators do.
#include <gtest/gtest.h>

#include "tests/support/segment_attention.h"
#include "tests/unit/sim/helpers.h"

namespace kvcache::testing::sim {
namespace {

TEST(SimSegmentAttention, IsThere) { EXPECT_TRUE(detail::has_segment_attention(device(0))); }

TEST(SimSegmentAttention, EqualsThePlainForm) {
  expect_plain_form_at_the_edges(device(0));
  expect_plain_form_after_crops(device(0));
}

}  // namespace
}  // namespace kvcache::testing::sim
