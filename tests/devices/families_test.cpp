// Every family's checkpoint on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/models/registry.h"
#include "tests/support/sim/sim.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const std::filesystem::path kParity = KVCACHE_TEST_DATA_DIR "/parity";

// Folders of checkpoints within kParity.
std::vector<std::string> checkpoints() {
  std::vector<std::string> names;
  for (const char* folder : {"checkpoints", "seq2seq_checkpoints"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kParity / folder)) {
      names.push_back(std::string(folder) + "/" + entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Names of the lists of layers in a checkpoint's weights.
std::vector<std::string> layer_lists(const std::string& checkpoint) {
  if (checkpoint.starts_with("seq2seq")) return {"decoder.block"};
  if (checkpoint.starts_with("checkpoints/mamba")) return {"backbone.layers"};
  return {"model.layers"};
}

std::unique_ptr<Cache> cache_for(const LanguageModel& model) {
  if (model.is_encoder_decoder()) return std::make_unique<EncoderDecoderCache>(model.config());
  return std::make_unique<DynamicCache>(model.config());
}

// How many of the decoder's own tensors in the cache lie on a device.
std::int64_t tensors_on(Cache& cache, at::Device device) {
  struct Count final : Visitor {
    void tensor(const TensorInfo&, at::Tensor& tensor) override {
      if (tensor.defined() && tensor.device() == device) ++found;
    }
    void count(std::string_view, std::int64_t&) override {}
    at::Device device{at::kCPU};
    std::int64_t found = 0;
  };
  Count count;
  count.device = device;
  auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache);
  LayeredCache& own =
      pair != nullptr ? pair->self_attention_cache() : dynamic_cast<LayeredCache&>(cache);
  own.visit(count);
  return count.found;
}

class DeviceFamilies : public ::testing::TestWithParam<std::string> {
 protected:
  // A padded prompt in two pieces, and single tokens, as on the CPU. Returns the device's cache.
  std::unique_ptr<Cache> expect_the_cpus_logits(LoadOptions options) const {
    options.dtype = at::kFloat;
    const auto on_cpu = load_language_model(kParity / GetParam(), {.dtype = at::kFloat});
    const auto on_device = load_language_model(kParity / GetParam(), options);
    const at::Tensor ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7}, {0, 0, 0, 12, 13, 14, 15, 16}});
    const at::Tensor real = ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 1}});
    std::unique_ptr<Cache> cpu_cache = cache_for(*on_cpu), cache = cache_for(*on_device);
    std::int64_t first = 0;
    for (const std::int64_t tokens : {4, 2, 1, 1}) {
      ForwardInput input{.input_ids = ids.narrow(1, first, tokens),
                         .attention_mask = real.narrow(1, first, tokens)};
      if (on_cpu->is_encoder_decoder() && first == 0) input.encoder = EncoderInput{ids, real};
      const at::Tensor logits = on_device->forward(input, cache.get());
      EXPECT_EQ(logits.device(), sim::device(0));
      EXPECT_CLOSE(logits.cpu(), on_cpu->forward(input, cpu_cache.get()), 1e-4);
      first += tokens;
    }
    return cache;
  }
};

TEST_P(DeviceFamilies, GiveTheCpusLogits) {
  const auto cache = expect_the_cpus_logits({.device = sim::device(0)});
  EXPECT_EQ(tensors_on(*cache, sim::device(1)), 0);
}

// The second layer on the other device, whose work is late.
TEST_P(DeviceFamilies, DividedOverTwoDevicesGiveTheCpusLogits) {
  sim::configure({.kernel_delay = std::chrono::microseconds(50), .seed = 3});
  std::map<std::string, at::Device> divided;
  for (const std::string& layers : layer_lists(GetParam())) {
    divided.emplace(layers + ".1", sim::device(1));
  }
  const auto cache = expect_the_cpus_logits({.device = sim::device(0), .device_map = divided});
  EXPECT_GT(tensors_on(*cache, sim::device(0)), 0);
  EXPECT_GT(tensors_on(*cache, sim::device(1)), 0);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFamilies, ::testing::ValuesIn(checkpoints()),
                         [](const auto& name) {
                           std::string result = name.param;
                           std::replace(result.begin(), result.end(), '/', '_');
                           return result;
                         });

}  // namespace
}  // namespace kvcache::testing
