// A quantized cache on a GPU, step by step beside the same one on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/cache/quantized_cache.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache {
namespace {

using testing::ids_tensor;

const at::Device kGpu(at::kCUDA, 0);

// Appends one step's keys and values of layer 0 and attends to what the last token sees.
at::Tensor step(QuantizedCache& cache, const at::Tensor& states, const at::Tensor& query) {
  auto step = cache.begin_step(
      {.tokens = states.size(2),
       .batch = states.size(0),
       .ids = at::ones({states.size(0), states.size(2)}, at::kLong).to(states.device())});
  const View view = step.append(0, states, states.mul(0.5));
  at::Tensor result = attention(query, view, {});
  step.commit();
  return result;
}

// Codes may differ where a number lies between two of them, by one step of one token's.
TEST(GpuQuantizedCache, DecodesAsOnTheCpu) {
  const std::vector<QuantizedCacheConfig> configs = {
      {.nbits = 4, .q_group_size = 8, .residual_length = 5},
      {.nbits = 4, .axis_key = -1, .axis_value = -1, .q_group_size = 8, .residual_length = 5},
      {.backend = "hqq",
       .nbits = 8,
       .axis_key = 0,
       .axis_value = 1,
       .q_group_size = 8,
       .residual_length = 0},
      {.backend = "fp8"}};
  for (const QuantizedCacheConfig& config : configs) {
    SCOPED_TRACE(c10::str(config.backend, " ", config.axis_key.value_or(0)));
    at::manual_seed(1);
    QuantizedCache here({{}}, {.config = config}), there({{}}, {.config = config});
    for (int i = 0; i < 40; ++i) {
      if (i == 25) {  // within a group
        here.crop(-7);
        there.crop(-7);
      }
      const at::Tensor states = at::randn({2, 2, i == 0 ? 70 : 1, 16});
      const at::Tensor query = at::randn({2, 6, 1, 16});
      const at::Tensor right = step(here, states, query);
      const at::Tensor result = step(there, states.to(kGpu), query.to(kGpu));
      ASSERT_TRUE(result.is_cuda());
      EXPECT_CLOSE(result.cpu(), right, 0.02) << "step " << i;
    }
    EXPECT_EQ(here.get_seq_length(), there.get_seq_length());
    EXPECT_EQ(here.nbytes(), there.nbytes());
  }
}

// A model of full and sliding layers, prompt and decoded tokens.
TEST(GpuQuantizedCache, AModelsLogitsAreTheCpus) {
  const ModelConfig config = testing::tiny_config("mixed", 6);
  const auto weights = testing::tiny_weights(config);
  const auto make = [&](at::Device device) {
    const LoadOptions options{.dtype = at::kFloat, .device = device};
    return std::make_unique<DecoderModel>(config, StateDict(weights, options), options,
                                          DecoderStyle{});
  };
  const auto here = make(at::kCPU), there = make(kGpu);
  const QuantizedCacheOptions options{.config = {.backend = "hqq",
                                                 .nbits = 8,
                                                 .axis_key = 1,
                                                 .axis_value = 1,
                                                 .q_group_size = 8,
                                                 .residual_length = 2}};
  QuantizedCache of_here(config, options), of_there(config, options);
  at::Tensor ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {9, 3, 3, 4, 1, 0, 2, 60, 12}});
  for (int i = 0; i < 12; ++i) {
    const at::Tensor right = here->forward({.input_ids = ids}, &of_here);
    const at::Tensor result = there->forward({.input_ids = ids.to(kGpu)}, &of_there);
    EXPECT_CLOSE(result.cpu(), right, 0.05) << "step " << i;
    ids = right.select(1, right.size(1) - 1).argmax(-1, /*keepdim=*/true);
  }
}

}  // namespace
}  // namespace kvcache
