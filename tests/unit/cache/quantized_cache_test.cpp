// QuantizedCache against the known faults of its kind. Numbers are theirs. What its storage does to
// each token: quantized_storage_test.cpp.

#include "kvcache/cache/quantized_cache.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvcache/cache/serialization.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::difference;
using ::testing::HasSubstr;
using testing::refusal;
using testing::window;

const std::vector<QuantizedCacheConfig> kConfigs = {
    {.nbits = 4, .q_group_size = 8, .residual_length = 3},
    {.nbits = 2, .axis_key = -1, .axis_value = 0, .q_group_size = 8, .residual_length = 3},
    {.backend = "hqq",
     .nbits = 8,
     .axis_key = 1,
     .axis_value = 1,
     .q_group_size = 8,
     .residual_length = 3},
    {.backend = "hqq", .nbits = 3, .q_group_size = 8, .residual_length = 3},
    {.backend = "fp8"},
};

QuantizedCache make(const QuantizedCacheConfig& config, std::vector<LayerSpec> layers = {{}}) {
  return QuantizedCache(layers, {.config = config});
}

// [rows, 2, tokens, 16], seeded.
at::Tensor states(std::int64_t rows, std::int64_t tokens, std::uint64_t seed = 1) {
  at::manual_seed(seed);
  return at::randn({rows, 2, tokens, 16});
}

KeyValue feed(Cache& cache, const at::Tensor& tokens) { return cache.update(tokens, tokens, 0); }

// F53: a row of three goes on as it would alone.
TEST(QuantizedCacheTest, F53_SelectedRowsGoOnAsTheyWouldAlone) {
  for (const QuantizedCacheConfig& config : kConfigs) {
    SCOPED_TRACE(config.backend);
    QuantizedCache three = make(config), one = make(config);
    const at::Tensor prompt = states(3, 70), next = states(1, 1, 2);
    feed(three, prompt);
    feed(one, prompt.narrow(0, 1, 1));
    three.batch_select_indices(at::tensor({1}, at::kLong));
    const KeyValue left = feed(three, next), alone = feed(one, next);
    EXPECT_EQ(difference(left.keys, alone.keys), 0);
    EXPECT_EQ(difference(left.values, alone.values), 0);
    three.batch_repeat_interleave(2);
    one.batch_repeat_interleave(2);
    const at::Tensor two = states(2, 9, 3);
    EXPECT_EQ(difference(feed(three, two).keys, feed(one, two).keys), 0);
  }
}

// F54: both rows become the first, and nothing is packed again.
TEST(QuantizedCacheTest, F54_ReorderedRowsAreCopiesOfWhatIsPacked) {
  for (const QuantizedCacheConfig& config : kConfigs) {
    SCOPED_TRACE(config.backend);
    QuantizedCache cache = make(config), one = make(config);
    const at::Tensor prompt = states(2, 70);
    feed(cache, prompt);
    feed(one, prompt.narrow(0, 0, 1));
    cache.reorder_cache(at::tensor({1, 0}, at::kLong));
    cache.reorder_cache(at::tensor({1, 1}, at::kLong));
    const at::Tensor next = states(1, 1, 2);
    const KeyValue both = feed(cache, next.expand({2, -1, -1, -1})), alone = feed(one, next);
    for (const std::int64_t row : {0, 1}) {
      EXPECT_EQ(difference(both.keys.narrow(0, row, 1), alone.keys), 0);
    }
  }
}

// F56: old tokens stay what they were when new ones, of growing size, come in.
TEST(QuantizedCacheTest, F56_OldTokensStayWhatTheyWere) {
  for (QuantizedCacheConfig config : kConfigs) {
    SCOPED_TRACE(config.backend);
    if (config.backend != "fp8") config.residual_length = 1;
    QuantizedCache cache = make(config);
    const std::int64_t old = config.backend == "fp8" ? 64 : 8;
    const at::Tensor prompt = states(1, old);
    feed(cache, prompt);
    at::Tensor before;
    for (std::int64_t i = 1; i <= 80; ++i) {
      const at::Tensor all = feed(cache, states(1, 1, i) * i).keys.narrow(2, 0, old);
      if (i == 2 && config.axis_key.value_or(0) != 0) continue;
      if (i > 10) {
        EXPECT_EQ(difference(all, before), 0) << i;
      }
      before = all.clone();
    }
  }
}

// F57: what fits is settled by the head size, whatever the prompt's length.
TEST(QuantizedCacheTest, F57_PromptsOfAnyLengthAndHeadsOfAnySize) {
  for (const std::int64_t head_dim : {8, 67, 80, 96}) {
    for (const std::int64_t tokens : {1, 7, 8, 200}) {
      QuantizedCache cache({LayerSpec{}}, {.config = {.q_group_size = 64, .residual_length = 2}});
      const at::Tensor prompt = at::randn({1, 2, tokens, head_dim});
      feed(cache, prompt);
      const KeyValue all = feed(cache, at::randn({1, 2, 1, head_dim}));
      EXPECT_EQ(all.keys.size(2), tokens + 1);
      EXPECT_LE(difference(all.keys.narrow(2, 0, tokens), prompt), 0.5)
          << head_dim << " " << tokens;
    }
  }
}

// F60: after ones, larger values neither become NaN nor spoil what was there.
TEST(QuantizedCacheTest, F60_Fp8TakesValuesBeyondTheFirst) {
  QuantizedCache cache = make({.backend = "fp8"});
  feed(cache, at::ones({1, 1, 64, 4}));
  const at::Tensor later =
      at::tensor({1.03F, 1.04F, 1.1F, 2.0F, -3.0F}).view({1, 1, 5, 1}).expand({1, 1, 5, 4});
  feed(cache, later);
  feed(cache, at::zeros({1, 1, 64, 4}));
  const at::Tensor all = feed(cache, at::zeros({1, 1, 1, 4})).keys;
  EXPECT_LE(difference(all.narrow(2, 0, 64), at::ones({1, 1, 64, 4})), 1e-6);
  EXPECT_LE(difference(all.narrow(2, 64, 5), later), 3.0 / 16);
}

// F61: codes, scales and offsets are in the file, so it says the same to another backend of the
// same grouping, and is refused where they would mean something else.
TEST(QuantizedCacheTest, F61_FilesHoldScalesAndOffsets) {
  const testing::TempFolder folder;
  const std::string path = folder.path() / "cache.safetensors";
  const auto with = [](const char* backend, std::int64_t bits, std::int64_t axis,
                       std::int64_t group) {
    return QuantizedCacheConfig{.backend = backend,
                                .nbits = bits,
                                .axis_key = axis,
                                .axis_value = axis,
                                .q_group_size = group,
                                .residual_length = 3};
  };
  QuantizedCache cache = make(with("quanto", 4, 0, 8));
  feed(cache, states(2, 30));
  cache.crop(-5);
  save_cache(cache, path);
  QuantizedCache same = make(with("hqq", 4, 1, 8));
  load_cache(same, path);
  const at::Tensor next = states(2, 1, 2);
  EXPECT_EQ(difference(feed(same, next).keys, feed(cache, next).keys), 0);
  QuantizedCacheConfig rotated = with("quanto", 4, 0, 8);
  rotated.rotate_keys = true;
  for (const QuantizedCacheConfig& other :
       {with("quanto", 2, 0, 8), with("quanto", 4, 0, 4), with("quanto", 4, -1, 8), rotated,
        QuantizedCacheConfig{.backend = "fp8"}}) {
    QuantizedCache different = make(other);
    EXPECT_THAT(refusal<ValueError>([&] { load_cache(different, path); }), HasSubstr("layer 0"));
    EXPECT_EQ(different.get_seq_length(), 0);
  }
}

TEST(QuantizedCacheTest, CachesOfDifferentLengthsJoinBeforeTheyPackOnly) {
  QuantizedCache a = make(kConfigs[0]), b = make(kConfigs[0]);
  feed(a, states(1, 3));
  feed(b, states(1, 2));
  EXPECT_EQ(a.concatenate({&b})->batch_size(), 2);
  feed(a, states(1, 3));
  const std::string message = refusal<ValueError>([&] { a.concatenate({&b}); });
  EXPECT_THAT(message, AllOf(HasSubstr("6 tokens"), HasSubstr("2"), HasSubstr("residual_length")));
  EXPECT_EQ(a.get_seq_length(), 6);
  feed(b, states(1, 4));
  EXPECT_EQ(a.concatenate({&b})->batch_size(), 2);
}

TEST(QuantizedCacheTest, SettingsThatThereAreNotAreRefused) {
  const auto says = [](const QuantizedCacheConfig& config) {
    return refusal<ValueError>([&] { make(config); });
  };
  EXPECT_THAT(says({.backend = "awq"}), HasSubstr("\"quanto\", \"hqq\", \"fp8\" or \"int\""));
  EXPECT_THAT(says({.backend = "int", .nbits = 2}), HasSubstr("one of [4,8] for int"));
  EXPECT_THAT(says({.backend = "int", .axis_key = 0}),
              HasSubstr("axis_key has no use: int takes none of axis_key"));
  EXPECT_THAT(says({.key_nbits = 3}), HasSubstr("key_nbits must be one of [2,4] for quanto"));
  EXPECT_THAT(says({.pinned_tokens = -1}),
              HasSubstr("pinned_tokens must be an integer of at least 0"));
  EXPECT_THAT(says({.first_dense_layers = -2}), HasSubstr("first_dense_layers must be"));
  EXPECT_THAT(says({.nbits = 8}), HasSubstr("nbits must be one of [2,4] for quanto, but is 8"));
  EXPECT_THAT(says({.axis_key = 1}), HasSubstr("axis_key must be one of [0,-1] for quanto"));
  EXPECT_THAT(says({.backend = "hqq", .axis_value = -1}), HasSubstr("one of [0,1] for hqq"));
  EXPECT_THAT(says({.q_group_size = 0}),
              HasSubstr("q_group_size must be an integer of at least 1"));
  EXPECT_THAT(says({.residual_length = -1}), HasSubstr("residual_length must be"));
  EXPECT_THAT(says({.backend = "fp8", .nbits = 8, .residual_length = 1}),
              HasSubstr("nbits, residual_length has no use: fp8 takes none"));
}

// Beyond Transformers: the first and last layers with keys of their own may stay dense.
TEST(QuantizedCacheTest, TheFirstAndLastLayersMayStayDense) {
  const LayerSpec nothing{.type = std::string(kDummy)};
  for (const bool fixed : {false, true}) {
    QuantizedCacheOptions options{
        .config = {
            .nbits = 2, .residual_length = 0, .first_dense_layers = 2, .last_dense_layers = 1}};
    if (fixed) options.fixed = StaticLayerOptions{.max_cache_len = 64};
    QuantizedCache cache({LayerSpec{}, nothing, window(30), {}, {}, {}}, options);
    const at::Tensor prompt = states(1, 40), next = states(1, 1, 2);
    const at::Tensor right = at::cat({prompt, next}, 2);
    std::vector<bool> exact;
    for (const int layer : {0, 2, 3, 4, 5}) cache.update(prompt, prompt, layer);
    for (const int layer : {0, 2, 3, 4, 5}) {
      const at::Tensor keys = cache.update(next, next, layer).keys;
      const std::int64_t filled = std::min<std::int64_t>(keys.size(2), 41);
      exact.push_back(difference(keys.narrow(2, 0, filled), right.narrow(2, 41 - filled, filled)) ==
                      0);
    }
    EXPECT_EQ(exact, (std::vector<bool>{true, true, false, false, true}));
  }
  EXPECT_THAT(refusal<ValueError>([&] { make({.first_dense_layers = 1}, {}); }),
              HasSubstr("make the cache from its config"));
}

// Keys and values may have bits of their own, and the first tokens stay as they are.
TEST(QuantizedCacheTest, KeysAndValuesMayHaveOtherBitsAndTheFirstTokensNone) {
  QuantizedCache cache = make({.residual_length = 0, .key_nbits = 2, .pinned_tokens = 4});
  const at::Tensor prompt = states(2, 30);
  feed(cache, prompt);
  const KeyValue all = feed(cache, states(2, 1, 2));
  const auto error = [&](const at::Tensor& t, std::int64_t first, std::int64_t length) {
    return difference(t.narrow(2, first, length), prompt.narrow(2, first, length));
  };
  EXPECT_EQ(error(all.keys, 0, 4), 0);
  EXPECT_EQ(error(all.values, 0, 4), 0);
  EXPECT_GT(error(all.keys, 4, 26), 2 * error(all.values, 4, 26));
  EXPECT_GT(error(all.values, 4, 26), 0);
}

}  // namespace
}  // namespace kvcache
