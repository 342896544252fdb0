// What a quantized cache holds after it was filled, joined, reset, forked and refused something.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/layer_state.h"
#include "kvcache/cache/quantized_cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/layers/quantized_layer.h"
#include "tests/support/exact_codec.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::difference;
using testing::ExactCodec;
using ::testing::HasSubstr;
using testing::refusal;

const QuantizedCacheConfig kOverTokens{
    .nbits = 4, .axis_key = -1, .axis_value = -1, .q_group_size = 8, .residual_length = 3};

QuantizedCache make(const QuantizedCacheConfig& config = kOverTokens, bool fixed = false) {
  QuantizedCacheOptions options{.config = config};
  if (fixed) options.fixed = StaticLayerOptions{.max_cache_len = 400};
  return QuantizedCache({LayerSpec{}}, options);
}

// [rows, 2, tokens, 16], seeded.
at::Tensor states(std::int64_t rows, std::int64_t tokens, std::uint64_t seed = 1) {
  at::manual_seed(seed);
  return at::randn({rows, 2, tokens, 16});
}

at::Tensor feed(Cache& cache, const at::Tensor& tokens) {
  return cache.update(tokens, tokens, 0).keys;
}

TEST(QuantizedState, FilledOnesSurviveARefusedStep) {
  const testing::TempFolder folder;
  const std::string path = folder.path() / "cache.safetensors";
  for (const bool fixed : {false, true}) {
    QuantizedCache source = make(kOverTokens, fixed), cache = make(kOverTokens, fixed);
    feed(source, states(1, 30));
    save_cache(source, path);
    load_cache(cache, path);
    EXPECT_THAT(refusal<ValueError>([&] { feed(cache, states(2, 1)); }), HasSubstr("batch 2"));
    { Step dropped = cache.begin_step({.tokens = 1, .batch = 1}); }
    cache.crop(-7);
    source.crop(-7);
    const at::Tensor next = states(1, 20, 2);
    EXPECT_EQ(difference(feed(cache, next), feed(source, next)), 0);
    EXPECT_EQ(cache.get_seq_length(), 43);
  }
}

// Rows whose groups were cropped otherwise do not fit one table of groups.
TEST(QuantizedState, CachesCroppedOtherwiseDoNotJoin) {
  const auto cropped = [](std::int64_t first, std::int64_t second) {
    auto cache = std::make_unique<QuantizedCache>(make());
    feed(*cache, states(1, first + 3));
    cache->crop(-6);  // three of a group
    feed(*cache, states(1, second, 2));
    return cache;
  };
  const auto a = cropped(16, 16), b = cropped(8, 24), c = cropped(16, 16);
  ASSERT_EQ(a->get_seq_length(), b->get_seq_length());
  EXPECT_THAT(refusal<ValueError>([&] { a->concatenate({b.get()}); }),
              HasSubstr("differ in 'groups_checksum'"));
  const auto joined = a->concatenate({c.get()});
  const at::Tensor next = states(1, 1, 3);
  const at::Tensor both = feed(*joined, at::cat({next, next}));
  EXPECT_EQ(difference(both.narrow(0, 0, 1), feed(*a, next)), 0);
  EXPECT_EQ(difference(both.narrow(0, 1, 1), feed(*c, next)), 0);
}

TEST(QuantizedState, AfterAResetAnyKeysFit) {
  for (const bool fixed : {false, true}) {
    QuantizedCache cache = make(kOverTokens, fixed);
    feed(cache, states(2, 30));
    cache.reset();
    EXPECT_EQ(cache.nbytes(), 0);  // which visits what is there
    const at::Tensor keys = states(1, 30, 2).narrow(3, 0, 12).to(at::kBFloat16);
    feed(cache, keys);
    const at::Tensor all = feed(cache, keys);
    EXPECT_EQ(all.scalar_type(), at::kBFloat16);
    EXPECT_EQ(all.sizes(), at::IntArrayRef({1, 2, 60, 12}));
    EXPECT_LE(difference(all.narrow(2, 0, 30), keys), 0.5);
  }
}

// The tokens that are not packed are in the model's dtype, and so are packed ones read.
TEST(QuantizedState, FilesOfAnotherDtypeAreRefused) {
  const testing::TempFolder folder;
  const std::string path = folder.path() / "cache.safetensors";
  for (const bool fixed : {false, true}) {
    for (const std::int64_t residual : {0, 3}) {
      QuantizedCacheConfig config = kOverTokens;
      config.residual_length = residual;
      QuantizedCache source = make(config, fixed), cache = make(config, fixed);
      feed(source, states(1, 32).to(at::kBFloat16));
      save_cache(source, path);
      EXPECT_THAT(refusal<ValueError>([&] { load_cache(cache, path, {.dtype = at::kFloat}); }),
                  HasSubstr("keys are bfloat16, but must be float32"));
      EXPECT_EQ(cache.get_seq_length(), 0);
      load_cache(cache, path, {.dtype = at::kBFloat16});
      EXPECT_EQ(cache.get_seq_length(), 32);
    }
  }
}

// Each fork begins blocks of its own, as large as what it adds, and many become few.
TEST(QuantizedState, ForksOfForksStaySmall) {
  auto cache = std::make_unique<QuantizedCache>(make({.residual_length = 0}));
  cache->reserve(20'000);
  feed(*cache, states(1, 2000));
  const std::int64_t held = cache->nbytes();
  std::unique_ptr<Cache> fork = cache->fork();
  at::Tensor all;
  for (int i = 0; i < 100; ++i) {
    fork = fork->fork();
    all = feed(*fork, states(1, 5, static_cast<std::uint64_t>(i)));
  }
  EXPECT_EQ(fork->get_seq_length(), 2500);
  EXPECT_LE(fork->nbytes(), held * 3 / 2);
  EXPECT_LE(difference(all.narrow(2, 0, 2000), states(1, 2000)), 0.5);
  EXPECT_LE(difference(all.narrow(2, 2000, 5), states(1, 5, 0)), 0.5);
  struct CountBlocks final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      if (info.name != "packed_keys" || !tensor.defined()) return;
      ++blocks;
      slots += tensor.size(2);
    }
    void count(std::string_view, std::int64_t&) override {}
    std::int64_t blocks = 0, slots = 0;
  };
  CountBlocks count;
  dynamic_cast<LayeredCache&>(*fork).visit(count);
  EXPECT_LE(count.blocks, 64);
  EXPECT_LE(count.slots, 20'000 + 64 * 128);
}

TEST(QuantizedState, OtherHeadsThanThoseOfTheRecentWindowAreRefused) {
  for (const bool fixed : {false, true}) {
    QuantizedCache source = make(kOverTokens, fixed), cache = make(kOverTokens, fixed);
    feed(source, states(1, 30));
    const auto layer_of = [](QuantizedCache& of) -> Layer& {
      return const_cast<Layer&>(of.layer(0));
    };
    detail::LayerState state = detail::read_state(layer_of(source), 1);
    for (auto& [name, tensor] : state.tensors) {
      if (name.starts_with("packed_key") && tensor.content.defined() && tensor.content.dim() == 4) {
        tensor.content = tensor.content.narrow(1, 0, 1);
      }
    }
    EXPECT_THAT(refusal<ValueError>([&] {
                  detail::write_state(
                      layer_of(cache), state,
                      {.memory = *std::make_shared<TorchMemory>(), .device = at::kCPU, .batch = 1});
                  cache.layer(0).check_filled();
                }),
                HasSubstr("2 heads"));
  }
}

TEST(QuantizedState, KeysAndValuesInGroupsOfOtherLengthsAreRefused) {
  const QuantizedLayerOptions options{.codecs = {.keys = std::make_shared<ExactCodec>(4),
                                                 .values = std::make_shared<ExactCodec>(8)}};
  EXPECT_THAT(refusal<ValueError>([&] { QuantizedLayer(LayerSpec{}, options); }),
              HasSubstr("groups of 4 tokens and values in groups of 8"));
}

}  // namespace
}  // namespace kvcache
