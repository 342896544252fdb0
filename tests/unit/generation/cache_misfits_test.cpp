// Caches and masks that a model could not go on with, passed to generate().
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::ids_tensor;

at::Tensor prompt() { return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}}); }

// A cache that the model could not go on with is refused before anything of it is taken back.
TEST(CacheReuseMisfits, AreRefusedUntouched) {
  const CausalLM& model = testing::checkpoint("mistral");
  const auto layers = static_cast<std::int64_t>(model.config().layer_specs().size());
  const auto refused = [&](Cache& cache) {
    const std::int64_t length = cache.get_seq_length();
    EXPECT_THROW(generate(model, {.input_ids = prompt(), .continuation = true},
                          {.max_new_tokens = 2}, &cache),
                 ValueError);
    EXPECT_EQ(cache.get_seq_length(), length);
  };
  const auto filled = [&](std::int64_t count, at::ScalarType dtype) {
    DynamicCache cache;
    for (std::int64_t i = 0; i < count; ++i) {
      const at::Tensor states = at::ones({1, 2, 4, 8}, dtype);
      cache.update(states, states, i);
    }
    return cache;
  };
  DynamicCache other_layers = filled(layers + 1, at::kFloat);
  refused(other_layers);
  DynamicCache other_dtype = filled(layers, at::kHalf);
  refused(other_dtype);
  DynamicCache narrow(
      std::vector<LayerSpec>(static_cast<std::size_t>(layers),
                             LayerSpec{.type = std::string(kSlidingAttention), .window = 2}));
  refused(narrow);
}

// A cache of full layers under a sliding model gives the model's own text.
TEST(CacheReuseMisfits, ACacheThatKeepsMoreIsExact) {
  for (const char* name : {"mistral", "qwen2", "qwen3_sliding"}) {
    const CausalLM& model = testing::checkpoint(name);
    DynamicCache cache;
    const GenerationConfig config{.max_new_tokens = 12};
    const Output own = generate(model, {.input_ids = prompt()}, config);
    const Output full = generate(model, {.input_ids = prompt()}, config, &cache);
    EXPECT_TRUE(own.sequences.equal(full.sequences)) << name;
  }
}

// It goes before them, where no window counts it.
TEST(CacheReuseMisfits, PaddingBetweenTokensIsNoTextUnderWindows) {
  const at::Tensor mask = ids_tensor({{1, 1, 1, 1, 0, 0, 1, 1, 1}});
  const at::Tensor alone = prompt().masked_select(mask.to(at::kBool)).unsqueeze(0);
  for (const char* name : {"mistral", "llama"}) {
    const CausalLM& model = testing::checkpoint(name);
    const auto new_tokens = [&](const Inputs& inputs) {
      return generate(model, inputs, {.max_new_tokens = 6}).sequences.slice(1, -6);
    };
    EXPECT_TRUE(new_tokens({.input_ids = prompt(), .attention_mask = mask})
                    .equal(new_tokens({.input_ids = alone})))
        << name;
  }
}

}  // namespace
}  // namespace kvcache
