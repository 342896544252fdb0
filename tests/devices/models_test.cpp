// Models on devices: what moves, and layers that lie on different ones.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/sim/sim.h"
#include "tests/support/table_text.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

const at::Tensor kBatch = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7}, {0, 0, 0, 0, 0, 12, 13, 14}});
const at::Tensor kBatchMask = ids_tensor({{1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 1, 1, 1}});

std::unique_ptr<CausalLM> model_on(const std::string& kind, LoadOptions options) {
  options.dtype = at::kFloat;
  const ModelConfig config = tiny_config(kind);
  return std::make_unique<DecoderModel>(config, StateDict(tiny_weights(config), options), options,
                                        DecoderStyle{});
}

// The second of three layers, and the head, on the other device.
LoadOptions divided() {
  return {.device = sim::device(0),
          .device_map = {{"model.layers.1", sim::device(1)}, {"lm_head", sim::device(1)}}};
}

class DeviceModels : public ::testing::TestWithParam<std::string> {};

// A prompt in two pieces and three more tokens, with and without a cache, as on the CPU.
void expect_as_on_the_cpu(const CausalLM& model, const CausalLM& on_cpu) {
  DynamicCache cache(model.config()), cpu_cache(on_cpu.config());
  const auto step = [&](std::int64_t first, std::int64_t tokens) {
    const ForwardInput input{.input_ids = kBatch.narrow(1, first, tokens),
                             .attention_mask = kBatchMask.narrow(1, 0, first + tokens)};
    const at::Tensor logits = model.forward(input, &cache);
    EXPECT_EQ(logits.device(), model.device());
    EXPECT_CLOSE(logits.cpu(), on_cpu.forward(input, &cpu_cache), 1e-4);
  };
  step(0, 3);
  step(3, 2);
  for (std::int64_t i = 5; i < 8; ++i) step(i, 1);
  const ForwardInput whole{.input_ids = kBatch, .attention_mask = kBatchMask};
  EXPECT_CLOSE(model.forward(whole).cpu(), on_cpu.forward(whole), 1e-4);
}

TEST_P(DeviceModels, GiveTheCpusLogits) {
  expect_as_on_the_cpu(*model_on(GetParam(), {.device = sim::device(0)}), *tiny_model(GetParam()));
}

TEST_P(DeviceModels, DividedOverTwoDevicesGiveTheCpusLogits) {
  sim::configure({.kernel_delay = std::chrono::microseconds(200), .seed = 1});
  expect_as_on_the_cpu(*model_on(GetParam(), divided()), *tiny_model(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceModels,
                         ::testing::Values("full", "sliding", "chunked", "mixed"),
                         [](const auto& kind) { return kind.param; });

TEST(DividedModels, CacheLayersLieWhereTheirTensorsDo) {
  const auto model = model_on("full", divided());
  DynamicCache cache(model->config());
  model->forward({.input_ids = kBatch}, &cache);
  struct Collect final : Visitor {
    void tensor(const TensorInfo&, at::Tensor& tensor) override {
      devices.push_back(tensor.device().index());
    }
    void count(std::string_view, std::int64_t&) override {}
    std::vector<int> devices;
  };
  Collect collect;
  cache.visit(collect);
  EXPECT_EQ(collect.devices, (std::vector<int>{0, 0, 1, 1, 0, 0}));
  cache.reorder_cache(at::tensor({1, 0}, at::kLong));
  cache.batch_repeat_interleave(2);
  const at::Tensor next = ids_tensor({{3}, {3}, {3}, {3}});
  EXPECT_EQ(model->forward({.input_ids = next}, &cache).sizes(),
            (std::vector<std::int64_t>{4, 1, 64}));
}

// Ids and a mask go to the device, the last position's scores come back, nothing else.
TEST(DeviceGeneration, OnlyWhatTheModelReadsMoves) {
  const auto model = model_on("full", {.device = sim::device(0)});
  const auto on_cpu = tiny_model("full");
  const GenerationConfig config{.max_new_tokens = 6};
  const Inputs inputs{.input_ids = kBatch, .attention_mask = kBatchMask};
  const Output expected = generate(*on_cpu, inputs, config);
  sim::reset_counters();
  const Output output = generate(*model, inputs, config);
  const sim::Counters moved = sim::counters();
  EXPECT_TRUE(output.sequences.is_cpu());
  EXPECT_TRUE(at::equal(output.sequences, expected.sequences));
  // A step: 2 rows of 64 float scores down; ids, positions (int64) and the mask (bool) up.
  EXPECT_EQ(moved.device_to_host, 6);
  EXPECT_EQ(moved.bytes_device_to_host, 6 * 2 * 64 * 4);
  const std::int64_t ids = 2 * (8 + 5) * 8;
  const std::int64_t masks = 2 * 8 * 8 + 2 * (9 + 10 + 11 + 12 + 13);
  EXPECT_LE(moved.bytes_host_to_device, 2 * ids + masks + 6 * 2 * 13);
}

TEST(DeviceGeneration, TheOutputLiesWithTheInputs) {
  const auto model = model_on("mixed", divided());
  const GenerationConfig config{.max_new_tokens = 4};
  const Output expected = generate(*tiny_model("mixed"), {.input_ids = kBatch}, config);
  for (const at::Device place : {at::Device(at::kCPU), sim::device(0), sim::device(1)}) {
    const Output output = generate(*model, {.input_ids = kBatch.to(place)}, config);
    EXPECT_EQ(output.sequences.device(), place);
    EXPECT_TRUE(at::equal(output.sequences.cpu(), expected.sequences));
  }
}

// A way of decoding eight tokens.
struct Way {
  const char* name;
  GenerationConfig config;
  bool whole_batch = true;  // of kBatch; else one row
  const LanguageModel* assistant = nullptr;
};

// Beams, drafts, and rows that end at different tokens.
std::vector<Way> ways_of_decoding(const LanguageModel& on_cpu, const LanguageModel& assistant) {
  const GenerationConfig config{.max_new_tokens = 8, .pad_token_id = 0};
  const at::Tensor free =
      generate(on_cpu, {.input_ids = kBatch, .attention_mask = kBatchMask}, config).sequences;
  const auto token = [&](std::int64_t row, std::int64_t number) {
    return free[row][kBatch.size(1) + number].item<std::int64_t>();
  };
  std::vector<Way> ways = {{"beams", config},  {"ends", config},       {"stop string", config},
                           {"lookup", config}, {"own drafts", config}, {"drafts", config}};
  ways[0].config.num_beams = 3;
  ways[0].config.num_return_sequences = 2;
  ways[0].config.eos_token_id = {{token(0, 3)}};
  ways[1].config.eos_token_id = {{token(0, 2), token(1, 5)}};
  ways[2].config.stop_strings = {{spelled(token(1, 3))}};
  for (std::size_t i = 3; i < ways.size(); ++i) ways[i].whole_batch = false;
  ways[3].config.prompt_lookup_num_tokens = 3;
  ways[4].assistant = &on_cpu;
  ways[5].assistant = &assistant;
  for (const std::size_t i : {4, 5}) {
    ways[i].config.num_assistant_tokens = 3;
    ways[i].config.assistant_confidence_threshold = 0;
  }
  return ways;
}

TEST(DeviceGeneration, EveryWayOfDecodingGivesTheCpusIds) {
  sim::configure({.kernel_delay = std::chrono::microseconds(30), .seed = 2});
  const auto model = model_on("mixed", divided()), other = model_on("full", divided());
  const auto on_cpu = tiny_model("mixed");
  for (Way& way : ways_of_decoding(*on_cpu, *other)) {
    const at::Tensor ids = way.whole_batch ? kBatch : ids_tensor({{5, 6, 5, 7, 5, 6}});
    for (const char* cache : {"dynamic", "static"}) {
      way.config.cache_implementation = cache;
      const auto run = [&](const LanguageModel& at_work, at::Device place) {
        Inputs inputs{
            .input_ids = ids.to(place), .text = spelled_ids(), .assistant_model = way.assistant};
        if (way.whole_batch) inputs.attention_mask = kBatchMask.to(place);
        return generate(at_work, inputs, way.config);
      };
      const Output expected = run(*on_cpu, at::kCPU);
      for (const at::Device place : {at::Device(at::kCPU), sim::device(0)}) {
        SCOPED_TRACE(c10::str(way.name, ", ", cache, ", inputs on ", place));
        const Output output = run(*model, place);
        EXPECT_EQ(output.sequences.device(), place);
        EXPECT_TRUE(at::equal(output.sequences.cpu(), expected.sequences))
            << output.sequences.cpu() << expected.sequences;
        EXPECT_TRUE(
            at::equal(output.cache->history().ids().cpu(), expected.cache->history().ids().cpu()));
        if (!expected.sequences_scores) continue;
        EXPECT_CLOSE(output.sequences_scores->cpu(), *expected.sequences_scores, 1e-4);
      }
    }
  }
}

// A model on the CPU takes inputs that lie on a device.
TEST(DeviceGeneration, TheModelMayLieOnTheCpu) {
  const auto model = tiny_model("full");
  const Output output =
      generate(*model, {.input_ids = kBatch.to(sim::device(1))}, {.max_new_tokens = 3});
  EXPECT_EQ(output.sequences.device(), sim::device(1));
}

}  // namespace
}  // namespace kvcache::testing
