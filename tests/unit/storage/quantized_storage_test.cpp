// Quantized layers under random sequences of operations, beside a plain account of what each token
// is worth: as it came while it is in the recent window, and what its codec makes of its group from
// then on.

#include "kvcache/storage/quantized_storage.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "kvcache/cache/quantized_cache.h"
#include "tests/support/quantized_account.h"
#include "tests/support/refusal.h"
#include "tests/support/sweep.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::Account;
using testing::difference;
using ::testing::HasSubstr;
using testing::refusal;
using testing::window;

constexpr std::int64_t kHeads = 2, kKeyDim = 12, kValueDim = 8;

struct Setting {
  QuantizedCacheConfig config;
  std::int64_t window = 0;  // 0: full
  bool fixed = false;       // in size
};

LayerSpec spec_of(const Setting& setting) {
  return setting.window > 0 ? window(setting.window) : LayerSpec{};
}

std::string named(const Setting& setting) {
  const QuantizedCacheConfig& c = setting.config;
  return c10::str(c.backend, " nbits ", c.nbits.value_or(0), " axes ", c.axis_key.value_or(0), " ",
                  c.axis_value.value_or(0), " residual ", c.residual_length.value_or(0), " pinned ",
                  c.pinned_tokens, " window ", setting.window, setting.fixed ? " fixed" : "");
}

// Every backend with each of its numbers of bits and pairs of axes.
std::vector<QuantizedCacheConfig> configs() {
  std::vector<QuantizedCacheConfig> all;
  const auto add = [&](const char* backend, std::initializer_list<std::int64_t> bits,
                       std::initializer_list<std::int64_t> axes) {
    for (const std::int64_t nbits : bits) {
      for (const std::int64_t key : axes) {
        for (const std::int64_t value : axes) {
          all.push_back({.backend = backend,
                         .nbits = nbits,
                         .axis_key = key,
                         .axis_value = value,
                         .q_group_size = 8});
        }
      }
    }
  };
  add("quanto", {2, 4}, {0, -1});
  add("hqq", {1, 2, 3, 4, 8}, {0, 1});
  for (const std::int64_t nbits : {4, 8}) all.push_back({.backend = "int", .nbits = nbits});
  all.push_back({.backend = "fp8"});
  all.push_back({.axis_key = -1, .q_group_size = 8, .key_nbits = 2, .rotate_keys = true});
  return all;
}

// Each of them in every kind of layer, with recent windows and pinned tokens in turn.
std::vector<Setting> settings() {
  constexpr std::array<std::int64_t, 3> kResiduals = {0, 3, 16};
  constexpr std::array<std::int64_t, 4> kPinned = {0, 5, 0, 1};
  std::vector<Setting> all;
  for (const std::int64_t window : {0, 11, 40}) {
    for (const bool fixed : {false, true}) {
      for (QuantizedCacheConfig config : configs()) {
        const std::size_t i = all.size();
        if (config.backend != "fp8") config.residual_length = kResiduals[i % 3];
        config.pinned_tokens = kPinned[i / 3 % 4];
        all.push_back({config, window, fixed});
      }
    }
  }
  return all;
}

QuantizedCacheOptions options_of(const Setting& setting) {
  QuantizedCacheOptions options{.config = setting.config};
  if (setting.fixed) options.fixed = StaticLayerOptions{.max_cache_len = 600};
  return options;
}

KeyValue random_states(std::int64_t batch, std::int64_t tokens) {
  return {at::randn({batch, kHeads, tokens, kKeyDim}),
          at::randn({batch, kHeads, tokens, kValueDim})};
}

// The cache and its account, which go through the same.
class Pair {
 public:
  Pair(const Setting& setting, bool record)
      : account_(setting.config, spec_of(setting), record ? 7 : 0),
        cache_(std::make_unique<QuantizedCache>(std::vector<LayerSpec>{spec_of(setting)},
                                                options_of(setting))) {
    if (record) cache_->activate_past_recording(7);
  }

  void step(std::int64_t tokens) {
    const KeyValue added = random_states(batch_, tokens);
    const KeyValue expected = account_.step(added);
    const KeyValue result = cache_->update(added.keys, added.values, 0);
    ASSERT_EQ(result.keys.sizes(), expected.keys.sizes());
    EXPECT_EQ(difference(result.keys, expected.keys), 0);
    EXPECT_EQ(difference(result.values, expected.values), 0);
  }

  void crop(std::int64_t tokens) {
    ASSERT_EQ(cache_->can_crop(tokens), account_.can_crop(tokens)) << tokens;
    if (!account_.can_crop(tokens) || tokens == 0) return;
    cache_->crop(-tokens);
    account_.crop(tokens);
  }

  void select(const std::vector<std::int64_t>& rows) {
    if (account_.length() == 0) return;
    cache_->batch_select_indices(at::tensor(rows, at::kLong));
    account_.select(at::tensor(rows, at::kLong));
    batch_ = static_cast<std::int64_t>(rows.size());
  }

  void replace(std::unique_ptr<Cache> other) { cache_ = std::move(other); }
  Cache& cache() { return *cache_; }
  std::int64_t batch() const { return batch_; }

 private:
  Account account_;
  std::unique_ptr<Cache> cache_;
  std::int64_t batch_ = 2;
};

void run_randomly(Pair& pair, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  std::vector<std::unique_ptr<Cache>> others;  // forks that go on beside it
  for (int i = 0; i < 40; ++i) {
    switch (below(8)) {
      case 0:
        pair.crop(1 + below(12));
        break;
      case 1:
        pair.select({below(pair.batch()), below(pair.batch())});
        break;
      case 2:
        pair.select(pair.batch() == 1 ? std::vector<std::int64_t>{0, 0, 0}
                                      : std::vector<std::int64_t>{below(pair.batch())});
        break;
      case 3:
        others.push_back(pair.cache().fork());
        if (below(2) == 0) {
          // The fork goes on in its place; what it came from takes other tokens.
          std::unique_ptr<Cache> fork = pair.cache().fork();
          others.push_back(pair.cache().fork());
          const KeyValue noise = random_states(pair.batch(), 1 + below(20));
          pair.cache().update(noise.keys, noise.values, 0);
          pair.replace(std::move(fork));
        }
        break;
      case 4:
        pair.replace(pair.cache().clone());
        break;
      default:
        pair.step(below(3) == 0 ? 1 + below(30) : 1);
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class QuantizedStorageTest : public ::testing::TestWithParam<int> {};

TEST_P(QuantizedStorageTest, EveryTokenIsWorthWhatItsGroupMakesOfIt) {
  const Setting setting = settings()[static_cast<std::size_t>(GetParam())];
  SCOPED_TRACE(named(setting));
  for (std::int64_t run = 0; run < testing::sweep_count(1, 4); ++run) {
    const auto seed = static_cast<std::uint32_t>(GetParam() + run);
    SCOPED_TRACE(seed);
    at::manual_seed(seed);
    Pair pair(setting, /*record=*/seed % 2 == 1);
    run_randomly(pair, seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedStorageTest,
                         ::testing::Range(0, static_cast<int>(settings().size())));

// F55
TEST(QuantizedStorage, WithinTheRecentWindowNothingIsPacked) {
  QuantizedCache cache({LayerSpec{}});
  const KeyValue prompt = random_states(1, 9), next = random_states(1, 1);
  cache.update(prompt.keys, prompt.values, 0);
  const KeyValue result = cache.update(next.keys, next.values, 0);
  EXPECT_EQ(difference(result.keys, at::cat({prompt.keys, next.keys}, 2)), 0);
  EXPECT_EQ(difference(result.values, at::cat({prompt.values, next.values}, 2)), 0);
}

// F52: 8 tokens packed and 3 behind them.
TEST(QuantizedStorage, CropsReachIntoPackedGroups) {
  for (const std::int64_t axis : {0, -1}) {
    const auto make = [&] {
      auto cache = std::make_unique<QuantizedCache>(
          std::vector<LayerSpec>{{}},
          QuantizedCacheOptions{
              .config = {
                  .axis_key = axis, .axis_value = axis, .q_group_size = 8, .residual_length = 3}});
      at::manual_seed(1);
      const KeyValue states = random_states(1, 11);
      cache->update(states.keys, states.values, 0);
      return cache;
    };
    for (const std::int64_t cropped : {2, 5, 10}) {
      const auto cache = make();
      cache->crop(-cropped);
      EXPECT_EQ(cache->get_seq_length(), 11 - cropped);
      const KeyValue next = random_states(1, 1);
      EXPECT_EQ(cache->update(next.keys, next.values, 0).keys.size(2), 12 - cropped);
    }
  }
}

// Bytes of long texts, against bfloat16's: issue and docs/quantization.md.
TEST(QuantizedStorage, BytesAreThoseOfTheBits) {
  const auto share = [](const QuantizedCacheConfig& config) {
    constexpr std::int64_t kTokens = 16384;
    QuantizedCache cache({LayerSpec{}}, {.config = config});
    const at::Tensor states = at::randn({1, 1, kTokens, 64}, at::kBFloat16);
    cache.update(states, states, 0);
    return static_cast<double>(cache.nbytes()) / (2.0 * kTokens * 64 * 2);
  };
  EXPECT_LE(share({.nbits = 4}), 0.29);
  EXPECT_LE(share({.nbits = 2}), 0.17);
  EXPECT_LE(share({.nbits = 4, .axis_key = -1, .axis_value = -1}), 0.29);
  EXPECT_LE(share({.nbits = 2, .axis_key = -1}), 0.17);
  EXPECT_LE(share({.backend = "fp8"}), 0.51);
}

TEST(QuantizedStorage, PlansSayWhatIsAllocated) {
  for (const QuantizedCacheConfig& config :
       {QuantizedCacheConfig{}, QuantizedCacheConfig{.axis_key = -1, .axis_value = -1},
        QuantizedCacheConfig{.pinned_tokens = 40}, QuantizedCacheConfig{.backend = "fp8"}}) {
    const LayerSpec spec{.kv_heads = kHeads, .key_dim = kKeyDim, .value_dim = kValueDim};
    for (const std::int64_t tokens : {5, 100, 400, 1000}) {
      for (const bool fixed : {false, true}) {
        QuantizedCacheOptions options{.config = config};
        if (fixed) options.fixed = StaticLayerOptions{.max_cache_len = 1000};
        QuantizedCache cache({spec}, options);
        const CachePlan plan = cache.plan({.batch = 2, .tokens = tokens});
        cache.reserve(tokens);
        const KeyValue states = random_states(2, tokens);
        for (std::int64_t i = 0; i < tokens; ++i) {
          cache.update(states.keys.narrow(2, i, 1), states.values.narrow(2, i, 1), 0);
        }
        const auto allocated = static_cast<double>(cache.allocated_bytes());
        const auto planned = static_cast<double>(plan.total);
        EXPECT_LE(allocated, planned * (fixed ? 1 : 1.02)) << config.backend << " " << tokens;
        EXPECT_GE(allocated, planned * (fixed ? 1 : 0.9)) << config.backend << " " << tokens;
      }
    }
  }
}

// Through everything but another number of rows.
TEST(QuantizedStorage, OfAFixedSizeBuffersStayWhereTheyAre) {
  for (const std::int64_t axis : {0, -1}) {
    QuantizedCache cache(
        {LayerSpec{}, window(20)},
        {.config = {.axis_key = axis, .q_group_size = 8, .residual_length = 4, .pinned_tokens = 3},
         .fixed = StaticLayerOptions{.max_cache_len = 64}});
    cache.activate_past_recording(12);
    const auto feed = [&](std::int64_t tokens) {
      for (const int layer : {0, 1}) {
        const KeyValue states = random_states(2, tokens);
        cache.update(states.keys, states.values, layer);
      }
    };
    const auto addresses = [&] {
      struct Collect final : Visitor {
        void tensor(const TensorInfo& info, at::Tensor& tensor) override {
          if (info.role == Role::layout) return;
          found.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
        }
        void count(std::string_view, std::int64_t&) override {}
        std::vector<const void*> found;
      };
      Collect collect;
      cache.visit(collect);
      return collect.found;
    };
    feed(7);
    const auto before = addresses();
    EXPECT_EQ(std::count(before.begin(), before.end(), nullptr), 0);
    feed(24);
    feed(1);
    EXPECT_EQ(addresses(), before);
    cache.crop(-9);
    feed(20);
    EXPECT_EQ(addresses(), before);
    cache.reorder_cache(at::tensor({1, 0}, at::kLong));
    feed(1);
    cache.batch_select_indices(at::tensor({1, 1}, at::kLong));
    feed(1);
    EXPECT_EQ(addresses(), before);
    cache.reset();
    feed(64);
    EXPECT_EQ(addresses(), before);
    EXPECT_THAT(refusal<ValueError>([&] { feed(1); }), HasSubstr("64 of at most 64 tokens"));
  }
}

// Each crop into a group leaves one that is not full, of which a table of a fixed size has room for
// some.
TEST(QuantizedStorage, OfAFixedSizeCropsIntoTooManyGroupsAreRefused) {
  QuantizedCache cache({LayerSpec{}},
                       {.config = {.axis_key = -1, .q_group_size = 64, .residual_length = 0},
                        .fixed = StaticLayerOptions{.max_cache_len = 6400}});
  const auto feed = [&](std::int64_t tokens) {
    const KeyValue states = random_states(1, tokens);
    cache.update(states.keys, states.values, 0);
  };
  feed(64);
  std::int64_t cropped = 0;
  while (cache.can_crop(63)) {
    cache.crop(-63);
    feed(64);
    ASSERT_LT(++cropped, 100);
  }
  EXPECT_GE(cropped, 16);
  const std::int64_t seen = cache.get_seq_length();
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.crop(-63); }), HasSubstr("63"));
  EXPECT_EQ(cache.get_seq_length(), seen);
  cache.crop(-64);  // all of a group
  while (cache.get_seq_length() + 64 <= 6400) feed(64);
  EXPECT_GT(cache.get_seq_length(), 6400 - 64);
}

}  // namespace
}  // namespace kvcache
