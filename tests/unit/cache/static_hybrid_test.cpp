// Fixed caches of layers that hold convolution and recurrent states beside keys and values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kvcache/cache/static_cache.h"
#include "tests/support/counting_states.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using testing::feed_text;
using ::testing::HasSubstr;
using testing::Numbers;
using testing::outputs_of;
using testing::refusal;

const LayerSpec kLinear{.type = std::string(kLinearAttention)};
const LayerSpec kBoth{.type = std::string(kHybrid)};
const LayerSpec kBothSliding{.type = std::string(kHybridSliding), .window = 4};

const std::vector<std::vector<LayerSpec>> kMixes{
    {kBoth}, {kBothSliding}, {kBoth, kLinear, kBothSliding, LayerSpec{}}};

const Numbers kText = {5, 6, 7, 8, 9, 10, 11, 7, 8, 12, 13, 14, 1, 2, 3, 4};

Numbers slice(const Numbers& text, std::size_t first, std::size_t end) {
  return {text.begin() + std::ptrdiff_t(first), text.begin() + std::ptrdiff_t(end)};
}

TEST(StaticHybrid, AnyPiecesEqualTheWhole) {
  for (const auto& layers : kMixes) {
    const Numbers right = outputs_of(layers, kText);
    for (std::size_t piece = 1; piece <= 7; ++piece) {
      StaticCache cache(layers, {.max_cache_len = 16});
      for (std::size_t at = 0; at < kText.size(); at += piece) {
        const std::size_t end = std::min(at + piece, kText.size());
        EXPECT_EQ(feed_text(cache, slice(kText, at, end)), slice(right, at, end));
      }
    }
  }
}

TEST(StaticHybrid, F17MaximumLength) {
  EXPECT_EQ(StaticCache({kBoth, kBothSliding}, {.max_cache_len = 16}).get_max_length(), 16);
  EXPECT_EQ(StaticCache({kBoth}, {.max_cache_len = 16}).capacity(), 16);
}

TEST(StaticHybrid, F18CropTakesBothHalvesBack) {
  for (const auto& layers : kMixes) {
    const Numbers right = outputs_of(layers, kText);
    for (const std::int64_t slack : {0, 3}) {
      StaticCache cache(layers, {.max_cache_len = 16, .record_slack = slack});
      cache.activate_past_recording(3);
      feed_text(cache, slice(kText, 0, 7));
      feed_text(cache, {50, 51, 52});
      cache.crop(-3);
      for (std::int64_t layer = 0; layer < cache.layer_count(); ++layer) {
        EXPECT_EQ(cache.get_seq_length(layer), 7);
      }
      EXPECT_EQ(feed_text(cache, slice(kText, 7, 16)), slice(right, 7, 16));
    }
  }
}

// One layer whose ring has no room to record refuses for all.
TEST(StaticHybrid, RecordingOfAllLayersOrNone) {
  StaticCache cache({kLinear, kBothSliding}, {.max_cache_len = 16});
  feed_text(cache, slice(kText, 0, 5));
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.activate_past_recording(2); }),
              HasSubstr("record_slack"));
  feed_text(cache, slice(kText, 5, 7));
  EXPECT_FALSE(cache.can_crop(1));
}

}  // namespace
}  // namespace kvcache
