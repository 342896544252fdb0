// A cache that makes full layers as keys come in, given to models that need others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "tests/support/checkpoints.h"
#include "tests/support/counting.h"
#include "tests/support/counting_states.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::AllOf;
using testing::counting;
using ::testing::HasSubstr;
using testing::kFull;
using testing::kLinear;
using testing::refusal;

constexpr const char* kRemedy =
    "construct it from the model's config, DynamicCache(model.config())";

TEST(LazyCache, ModelsWithStatesNameTheRemedy) {
  const at::Tensor ids = testing::ids_tensor({{5, 6, 7}});
  for (const char* name : {"mamba", "mamba2", "jamba", "lfm2", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const CausalLM& model = testing::checkpoint(name);
    DynamicCache cache;
    EXPECT_THAT(refusal<ValueError>([&] { model.forward({.input_ids = ids}, &cache); }),
                AllOf(HasSubstr("layer "), HasSubstr("states"), HasSubstr(kRemedy)));
    const std::vector<LayerSpec> layers = model.config().layer_specs();
    EXPECT_THAT(refusal<ValueError>([&] { cache.check_fits(layers, model.dtype()); }),
                AllOf(HasSubstr("layer "), HasSubstr("states"), HasSubstr(kRemedy)));
    EXPECT_EQ(cache.layer_count(), 0);
    EXPECT_EQ(cache.batch_size(), 0);
    testing::checkpoint("llama").forward({.input_ids = ids}, &cache);
    EXPECT_EQ(cache.get_seq_length(), 3);

    DynamicCache remedy(model.config());
    model.forward({.input_ids = ids}, &remedy);
    EXPECT_EQ(remedy.get_seq_length(), 3);
  }
}

// The layers before the one that is refused are gone with the step.
TEST(LazyCache, StatesBehindAttentionAreRefused) {
  DynamicCache cache;
  {
    Step step = cache.begin_step({.tokens = 2, .batch = 1});
    step.append(0, counting(0, 2, {1, 1, 1}), counting(0, 2, {1, 1, 1}));
    for (const std::int64_t layer : {1, 0}) {
      EXPECT_THAT(refusal<ValueError>([&] { step.wanted_states(layer); }),
                  AllOf(HasSubstr(c10::str("layer ", layer)), HasSubstr(kRemedy)));
    }
  }
  EXPECT_EQ(cache.layer_count(), 0);
}

TEST(LazyCache, WhatItMakesMustFitTheModel) {
  const LayerSpec shared{.type = std::string(kShared), .donor = 0};
  DynamicCache cache;
  cache.check_fits({kFull, {.type = std::string(kSlidingAttention), .window = 2}}, at::kFloat);
  EXPECT_THAT(refusal<ValueError>([&] {
                cache.check_fits({kFull, shared}, at::kFloat);
              }),
              AllOf(HasSubstr("layer 1"), HasSubstr("another layer's keys"), HasSubstr(kRemedy)));
  testing::feed(cache, 3, 0);
  testing::feed(cache, 3, 1);
  EXPECT_THAT(refusal<ValueError>([&] {
                cache.check_fits({kFull, kLinear}, at::kFloat);
              }),
              AllOf(HasSubstr("layer 1"), HasSubstr("states"), HasSubstr(kRemedy)));
  EXPECT_THAT(refusal<ValueError>([&] {
                cache.check_fits({kFull, shared}, at::kFloat);
              }),
              AllOf(HasSubstr("layer 1"), HasSubstr("the keys of layer 0"), HasSubstr("config")));
  cache.check_fits({kFull, kFull}, at::kFloat);
}

}  // namespace
}  // namespace kvcache
