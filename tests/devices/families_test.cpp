// Every family's checkpoint on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/models/registry.h"
#include "tests/support/sim/sim.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

const std::filesystem::path kCheckpoints = KVCACHE_TEST_DATA_DIR "/parity/checkpoints";

std::vector<std::string> checkpoints() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class DeviceFamilies : public ::testing::TestWithParam<std::string> {};

// A padded prompt in two pieces, and single tokens, as on the CPU.
void expect_the_cpus_logits(const std::string& name, LoadOptions options) {
  options.dtype = at::kFloat;
  const auto on_cpu = load_model(kCheckpoints / name, {.dtype = at::kFloat});
  const auto on_device = load_model(kCheckpoints / name, options);
  const at::Tensor ids = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7}, {0, 0, 0, 12, 13, 14, 15, 16}});
  const at::Tensor real = ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 1}});
  DynamicCache cpu_cache(on_cpu->config()), cache(on_device->config());
  std::int64_t first = 0;
  for (const std::int64_t tokens : {4, 2, 1, 1}) {
    const ForwardInput input{.input_ids = ids.narrow(1, first, tokens),
                             .attention_mask = real.narrow(1, first, tokens)};
    const at::Tensor logits = on_device->forward(input, &cache);
    EXPECT_EQ(logits.device(), sim::device(0));
    EXPECT_CLOSE(logits.cpu(), on_cpu->forward(input, &cpu_cache), 1e-4);
    first += tokens;
  }
}

TEST_P(DeviceFamilies, GiveTheCpusLogits) {
  expect_the_cpus_logits(GetParam(), {.device = sim::device(0)});
}

// The second layer on the other device.
TEST_P(DeviceFamilies, DividedOverTwoDevicesGiveTheCpusLogits) {
  const std::string layers = GetParam().starts_with("mamba") ? "backbone.layers" : "model.layers";
  expect_the_cpus_logits(
      GetParam(), {.device = sim::device(0), .device_map = {{layers + ".1", sim::device(1)}}});
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFamilies, ::testing::ValuesIn(checkpoints()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace kvcache::testing
