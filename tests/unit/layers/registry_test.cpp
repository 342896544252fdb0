#include "kvcache/layers/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/counting.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::counting;
using testing::feed;
using ::testing::HasSubstr;

TEST(LayerRegistry, ListsWhatItKnows) {
  try {
    dynamic_layers().make({.type = "mamba"}, std::make_shared<TorchMemory>());
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'mamba'"), HasSubstr("chunked_attention"),
                                    HasSubstr("full_attention"), HasSubstr("sliding_attention")));
  }
  EXPECT_THROW(DynamicCache({{.type = "mamba"}}), ValueError);
  EXPECT_THROW(DynamicCache({{.type = std::string(kSlidingAttention)}}), ValueError);  // no window
}

// A kind of one's own: a layer that keeps half of the window it is given.
class HalfWindow final : public AttentionLayer {
 public:
  HalfWindow(const LayerSpec& spec, std::shared_ptr<Memory> memory)
      : AttentionLayer(spec, Retention::sliding(spec.window / 2),
                       std::make_unique<GrowingStorage>(std::move(memory))) {}
};

TEST(LayerRegistry, TakesKindsOfOnesOwn) {
  DynamicCacheOptions options;
  add_layer<HalfWindow>(options.layers, "half_window");
  DynamicCache cache({{.type = "half_window", .window = 6}}, options);
  feed(cache, 10);
  EXPECT_EQ(feed(cache, 1), (std::vector<std::int64_t>{8, 9, 10}));
  EXPECT_EQ(cache.layer(0).spec().type, "half_window");
}

TEST(AttentionLayer, HoldsToTheHeadsOfItsSpec) {
  DynamicCache cache({{.kv_heads = 2, .key_dim = 3, .value_dim = 4}});
  const auto states = [](std::int64_t heads, std::int64_t dim) {
    return counting(0, 1, {1, heads, dim});
  };
  EXPECT_THROW(cache.update(states(1, 3), states(1, 4), 0), ValueError);
  EXPECT_THROW(cache.update(states(2, 4), states(2, 4), 0), ValueError);
  EXPECT_THROW(cache.update(states(2, 3), states(2, 3), 0), ValueError);
  cache.update(states(2, 3), states(2, 4), 0);
  EXPECT_EQ(cache.get_seq_length(), 1);
}

TEST(AttentionLayer, LengthsAreCountedByTheLayer) {
  DynamicSlidingWindowLayer layer({.window = 4});
  EXPECT_EQ(layer.get_max_length(), 4);
  EXPECT_EQ(layer.room(), std::nullopt);
  EXPECT_TRUE(layer.can_crop(0));
  EXPECT_FALSE(layer.can_crop(1));
  EXPECT_FALSE(layer.can_crop(-1));
  EXPECT_EQ(DynamicLayer().get_max_length(), -1);
  EXPECT_EQ(DynamicChunkedLayer({.window = 8}).get_max_length(), 8);
}

}  // namespace
}  // namespace kvcache
