// Arguments that are no caches, memories, layers or keys, and caches that were moved from: errors
// that name them.

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "tests/support/counting.h"
#include "tests/support/encoder_decoder.h"
#include "tests/support/refusal.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::counting;
using testing::encoder_input;
using testing::feed;
using ::testing::HasSubstr;
using testing::refusal;
using testing::run;

const LayerSpec kFull{};
const LayerSpec kLinear{.type = std::string(kLinearAttention)};

EncoderDecoderCache pair() { return {DynamicCache({kFull}), DynamicCache({kFull})}; }

TEST(RefusedArguments, NullMemory) {
  const std::vector<std::function<void()>> makers = {
      [] { DynamicCache cache({kFull}, {.memory = nullptr}); },
      [] { DynamicCache cache({}, {.memory = nullptr}); },
      [] { StaticCache cache({kFull}, {.max_cache_len = 4, .memory = nullptr}); },
      [] { MambaCache cache({kLinear}, {.memory = nullptr}); }};
  for (const auto& make : makers) EXPECT_THAT(refusal<ValueError>(make), HasSubstr("memory"));
}

TEST(RefusedArguments, LayerFactoriesThatMakeNothing) {
  LayerRegistry registry = dynamic_layers();
  EXPECT_THAT(refusal<ValueError>([&] { registry.add("mine", {}); }), HasSubstr("'mine'"));
  registry.add("mine", [](const LayerSpec&, const std::shared_ptr<Memory>&) { return nullptr; });
  EXPECT_THAT(
      refusal<ValueError>([&] { DynamicCache cache({{.type = "mine"}}, {.layers = registry}); }),
      AllOf(HasSubstr("'mine'"), HasSubstr("null")));
  registry.add(kFullAttention,
               [](const LayerSpec&, const std::shared_ptr<Memory>&) { return nullptr; });
  DynamicCache lazy({}, {.layers = registry});
  EXPECT_THROW(feed(lazy, 1), ValueError);
  EXPECT_EQ(lazy.layer_count(), 0);
}

TEST(RefusedArguments, NullCaches) {
  DynamicCache cache({kFull});
  feed(cache, 1);
  DynamicCache other({kFull});
  feed(other, 1);
  EXPECT_THAT(refusal<ValueError>([&] {
                cache.concatenate({&other, nullptr});
              }),
              HasSubstr("cache 2 of 3"));
  EncoderDecoderCache both = pair();
  run(both, 1, 1, encoder_input(10, 2));
  EXPECT_THAT(refusal<ValueError>([&] { both.concatenate({nullptr}); }), HasSubstr("cache 1 of 2"));
  EXPECT_THAT(refusal<ValueError>([] { Snapshot mark(nullptr); }), HasSubstr("snapshot"));
  Snapshot mark = cache.snapshot();
  const Snapshot moved = std::move(mark);
  EXPECT_THAT(refusal<RuntimeError>([&] { cache.restore(mark); }), HasSubstr("snapshot"));
  cache.restore(moved);
  EXPECT_THROW(
      EncoderDecoderCache(std::unique_ptr<LayeredCache>(), std::unique_ptr<LayeredCache>()),
      ValueError);
}

TEST(RefusedArguments, CachesThatWereMovedFrom) {
  const auto expect_refusals = [](Cache& gone) {
    const at::Tensor keys = counting(0, 1, {1, 1, 1});
    const at::Tensor rows = at::arange(1, at::kLong);
    const std::vector<std::function<void()>> calls = {
        [&] { gone.begin_step({.tokens = 1, .batch = 1}); },
        [&] { gone.update(keys, keys, 0); },
        [&] { gone.append(keys, keys, 0); },
        [&] { gone.get_seq_length(); },
        [&] { gone.get_mask_sizes(1, 0); },
        [&] { gone.get_max_length(); },
        [&] { gone.capacity(); },
        [&] { gone.batch_size(); },
        [&] { gone.has_previous_state(); },
        [&] { gone.history(); },
        [&] { gone.check_fits({kFull}, at::kFloat); },
        [&] {
          gone.common_prefix(at::ones({1, 1}, at::kLong));
        },
        [&] { gone.can_crop(1); },
        [&] { gone.reusable_prefix(1); },
        [&] { gone.crop(-1); },
        [&] { gone.activate_past_recording(); },
        [&] { gone.reset(); },
        [&] { gone.reserve(1); },
        [&] { gone.batch_select_indices(rows); },
        [&] { gone.reorder_cache(rows); },
        [&] { gone.batch_repeat_interleave(2); },
        [&] { gone.batch_split(1); },
        [&] { gone.concatenate({}); },
        [&] { gone.snapshot(); },
        [&] { gone.expand(2); },
        [&] { gone.clone(); },
        [&] { gone.fork(); },
        [&] { gone.nbytes(); },
        [&] { gone.allocated_bytes(); }};
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_THAT(refusal<RuntimeError>(calls[i]), HasSubstr("moved from")) << "call " << i;
    }
  };
  DynamicCache cache({kFull});
  feed(cache, 2);
  DynamicCache target = std::move(cache);
  expect_refusals(cache);
  EXPECT_THROW(target.concatenate({&cache}), ValueError);
  EXPECT_EQ(target.get_seq_length(), 2);
  cache = std::move(target);
  EXPECT_EQ(cache.get_seq_length(), 2);
  EncoderDecoderCache both = pair();
  const EncoderDecoderCache taken = std::move(both);
  expect_refusals(both);
}

TEST(RefusedArguments, LayersThatAreNotThere) {
  DynamicCache made({kFull, kFull}), lazy;
  EXPECT_THAT(refusal<ValueError>([&] { (void)made.get_seq_length(2); }),
              HasSubstr("no layer 2: this cache has layers 0 to 1"));
  EXPECT_THAT(refusal<ValueError>([&] { (void)lazy.get_seq_length(-1); }),
              HasSubstr("no layer -1: this cache can have layers 0 to 9999"));
}

TEST(RefusedArguments, KeysAndValuesOfTwoDtypes) {
  DynamicCache growing({kFull});
  StaticCache fixed({kFull}, {.max_cache_len = 4});
  const at::Tensor keys = counting(0, 1, {1, 1, 1});
  for (Cache* cache : {static_cast<Cache*>(&growing), static_cast<Cache*>(&fixed)}) {
    EXPECT_THAT(refusal<ValueError>([&] { cache->update(keys, keys.to(at::kHalf), 0); }),
                AllOf(HasSubstr("float32"), HasSubstr("float16"), HasSubstr("one dtype")));
    EXPECT_EQ(cache->get_seq_length(), 0);
  }
}

TEST(RefusedArguments, SparseTensors) {
  DynamicCache full({kFull}), cache({kFull, kLinear});
  const at::Tensor keys = counting(0, 1, {1, 1, 1});
  for (const at::Tensor& sparse : {keys.to_sparse(), keys.to_mkldnn()}) {
    for (const auto& [k, v] : {std::pair(sparse, keys), std::pair(keys, sparse)}) {
      EXPECT_THAT(refusal<ValueError>([&] { full.update(k, v, 0); }),
                  AllOf(HasSubstr("layout"), HasSubstr("to_dense()")));
    }
  }
  Step step = cache.begin_step({.tokens = 1, .batch = 1});
  EXPECT_THROW(step.append(0, keys.to_sparse(), keys), ValueError);
  step.append(0, keys, keys);
  const at::Tensor inputs = at::ones({1, 2, 1});
  EXPECT_THAT(refusal<ValueError>(
                  [&] { step.update_conv_state(1, inputs.to_sparse(), {.kernel_size = 3}); }),
              HasSubstr("to_dense()"));
  EXPECT_THAT(refusal<ValueError>([&] {
                step.update_recurrent_state(1, at::ones({1, 1, 2}).to_sparse());
              }),
              HasSubstr("to_dense()"));
}

}  // namespace
}  // namespace kvcache
