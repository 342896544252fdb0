// Static caches on a device: the host knows the length without asking it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/models/decoder.h"
#include "tests/support/refusal.h"
#include "tests/support/sim/sim.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<at::Tensor> buffers(LayeredCache& cache) {
  struct Collect final : Visitor {
    void tensor(const TensorInfo&, at::Tensor& tensor) override { found.push_back(tensor); }
    void count(std::string_view, std::int64_t&) override {}
    std::vector<at::Tensor> found;
  };
  Collect collect;
  cache.visit(collect);
  return collect.found;
}

at::Tensor states(double first, std::int64_t tokens) {
  return at::arange(first, first + double(tokens), at::kFloat)
      .view({1, 1, tokens, 1})
      .to(sim::device(0));
}

// Found on the host, before anything is queued on the device.
void expect_untouched(const sim::Counters& since) {
  EXPECT_EQ(since.launches, 0);
  EXPECT_EQ(since.host_to_device + since.device_to_host + since.device_to_device, 0);
  EXPECT_EQ(since.synchronizations, 0);
}

TEST(DeviceStaticCache, F14_OverflowIsFoundOnTheHostBeforeAnyKernel) {
  StaticCache cache(std::vector<LayerSpec>(2), {.max_cache_len = 4});
  for (const std::int64_t layer : {0, 1}) cache.update(states(50, 3), states(60, 3), layer);
  const std::vector<at::Tensor> before = buffers(cache);
  std::vector<at::Tensor> content;
  for (const at::Tensor& buffer : before) content.push_back(buffer.narrow(2, 0, 3).cpu());
  const at::Tensor keys = states(53, 2), values = states(63, 2);

  sim::reset_counters();
  EXPECT_THAT(refusal<ValueError>([&] { cache.update(keys, values, 0); }),
              AllOf(HasSubstr("4"), HasSubstr("3"), HasSubstr("2")));
  EXPECT_THAT(refusal<ValueError>([&] { cache.begin_step({.tokens = 2, .batch = 1}); }),
              AllOf(HasSubstr("4"), HasSubstr("3"), HasSubstr("2")));
  EXPECT_EQ(cache.get_seq_length(), 3);
  expect_untouched(sim::counters());

  const std::vector<at::Tensor> after = buffers(cache);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].const_data_ptr(), before[i].const_data_ptr());
    EXPECT_TRUE(at::equal(after[i].narrow(2, 0, 3).cpu(), content[i]));
  }
  for (const std::int64_t layer : {0, 1}) cache.update(states(53, 1), states(63, 1), layer);
  EXPECT_EQ(cache.get_seq_length(), 4);
}

TEST(DeviceStaticCache, F14_AModelsStepThatOverflowsTouchesNoDevice) {
  const LoadOptions options{.dtype = at::kFloat, .device = sim::device(0)};
  const ModelConfig config = tiny_config("full");
  const DecoderModel model(config, StateDict(tiny_weights(config), options), options, {});
  StaticCache cache(config, {.max_cache_len = 4});
  model.forward({.input_ids = ids_tensor({{5, 6, 7}})}, &cache);
  sim::synchronize();
  sim::reset_counters();
  const ForwardInput two{.input_ids = ids_tensor({{8, 9}})};
  EXPECT_THAT(refusal<ValueError>([&] { model.forward(two, &cache); }),
              AllOf(HasSubstr("4"), HasSubstr("3"), HasSubstr("2")));
  expect_untouched(sim::counters());
  const at::Tensor last = model.forward({.input_ids = ids_tensor({{8}})}, &cache);
  const at::Tensor whole =
      tiny_model("full")->forward({.input_ids = ids_tensor({{5, 6, 7, 8}}), .logits_to_keep = 1});
  EXPECT_CLOSE(last.cpu(), whole, 1e-4);
}

// No step waits for the device or copies from it: lengths and masks are the host's.
TEST(DeviceStaticCache, StepsNeverAskTheDevice) {
  const LoadOptions options{.dtype = at::kFloat, .device = sim::device(0)};
  const ModelConfig config = tiny_config("mixed");
  const DecoderModel model(config, StateDict(tiny_weights(config), options), options, {});
  StaticCache cache(config, {.max_cache_len = 16});
  sim::reset_counters();
  model.forward({.input_ids = ids_tensor({{5, 6, 7, 8, 9, 10}})}, &cache);
  for (std::int64_t i = 0; i < 6; ++i) model.forward({.input_ids = ids_tensor({{11 + i}})}, &cache);
  EXPECT_EQ(sim::counters().device_to_host, 0);
  EXPECT_EQ(sim::counters().synchronous_ops, 0);
  EXPECT_EQ(cache.get_seq_length(), 12);
}

TEST(DeviceStaticCache, GeneratesWhatADynamicCacheOnTheCpuDoes) {
  const LoadOptions options{.dtype = at::kFloat, .device = sim::device(0)};
  for (const std::string kind : {"full", "sliding", "mixed"}) {
    const ModelConfig config = tiny_config(kind);
    const DecoderModel model(config, StateDict(tiny_weights(config), options), options, {});
    const Inputs inputs{.input_ids = ids_tensor({{5, 6, 7, 8, 9}, {9, 8, 7, 6, 5}})};
    const Output output =
        generate(model, inputs, {.max_new_tokens = 6, .cache_implementation = "static"});
    const Output expected = generate(*tiny_model(kind), inputs, {.max_new_tokens = 6});
    EXPECT_TRUE(at::equal(output.sequences, expected.sequences)) << kind;
  }
}

}  // namespace
TEST(DeviceStaticCache, BuffersAreMadeAheadWhereEachLayerLies) {
  StaticCache cache(std::vector<LayerSpec>(2), {.max_cache_len = 4});
  EarlyInitialization shapes{.kv_heads = {1},
                             .key_dims = {1},
                             .devices = {sim::device(0), sim::device(1), sim::device(0)}};
  EXPECT_THAT(refusal<ValueError>([&] { cache.early_initialization(shapes); }),
              HasSubstr("3 devices for 2 layers"));
  shapes.devices.pop_back();
  cache.early_initialization(shapes);
  const std::vector<at::Tensor> made = buffers(cache);
  ASSERT_EQ(made.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(made[i].device(), sim::device(static_cast<c10::DeviceIndex>(i / 2)));
  for (const std::int64_t layer : {0, 1}) {
    const at::Device device = sim::device(static_cast<c10::DeviceIndex>(layer));
    EXPECT_THROW(cache.update(states(0, 2).cpu(), states(0, 2).cpu(), layer), ValueError);
    cache.update(states(0, 2).to(device), states(5, 2).to(device), layer);
  }
  const std::vector<at::Tensor> after = buffers(cache);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(after[i].const_data_ptr(), made[i].const_data_ptr());
  }
}

}  // namespace kvcache::testing
