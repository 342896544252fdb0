// The plan of a model's cache is what a text of that model allocates.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/models/registry.h"
#include "tests/support/failing_memory.h"

namespace kvcache {
namespace {

using testing::FailingMemory;

const std::filesystem::path kParity = KVCACHE_TEST_DATA_DIR "/parity";
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};
constexpr std::int64_t kLengths[] = {1, 7, 300};

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kParity / folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// int64 [batch, tokens]
at::Tensor text(std::int64_t batch, std::int64_t tokens) {
  return at::arange(batch * tokens, at::kLong).remainder(50).add(5).view({batch, tokens});
}

using MemoryPointer = std::shared_ptr<FailingMemory>;

// With room for `tokens` tokens.
std::unique_ptr<LayeredCache> make(const std::string& kind, const std::vector<LayerSpec>& layers,
                                   std::int64_t tokens, const MemoryPointer& memory) {
  if (kind == "mamba") {
    return std::make_unique<MambaCache>(layers, MambaCacheOptions{.memory = memory});
  }
  if (kind == "static") {
    return std::make_unique<StaticCache>(
        layers, StaticCacheOptions{.max_cache_len = tokens, .memory = memory});
  }
  return std::make_unique<DynamicCache>(layers, DynamicCacheOptions{.memory = memory});
}

class CheckpointPlan : public ::testing::TestWithParam<std::string> {
 protected:
  // On tensors this small, threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  void SetUp() override {
    for (const at::ScalarType dtype : kDtypes) {
      models_.push_back(load_model(kParity / "checkpoints" / GetParam(), {.dtype = dtype}));
    }
  }

  void expect_exact(const CausalLM& model, const PlanInput& input, bool record) {
    const std::vector<LayerSpec> layers = model.config().layer_specs();
    const bool linear = std::all_of(layers.begin(), layers.end(), [](const LayerSpec& spec) {
      return spec.type == kLinearAttention || spec.type == kConvolution;
    });
    std::vector<std::string> kinds{"dynamic", "static"};
    if (linear) kinds.emplace_back("mamba");
    for (const std::string& kind : kinds) {
      SCOPED_TRACE(c10::str(kind, ", ", input.dtype, ", ", input.batch, " x ", input.tokens,
                            record ? ", recording" : ""));
      const auto memory = std::make_shared<FailingMemory>();
      const auto cache = make(kind, layers, input.tokens, memory);
      if (record) cache->activate_past_recording();
      const CachePlan plan = cache->plan(input);
      EXPECT_EQ(memory->allocations(), 0);
      cache->reserve(input.tokens);
      model.forward({.input_ids = text(input.batch, input.tokens), .logits_to_keep = 1},
                    cache.get());
      EXPECT_EQ(plan.total, cache->allocated_bytes());
      EXPECT_EQ(plan.total, memory->live_bytes());
    }
  }

  std::vector<std::unique_ptr<CausalLM>> models_;
};

TEST_P(CheckpointPlan, IsWhatAPrefillAllocates) {
  for (const auto& model : models_) {
    for (const std::int64_t batch : {1, 3}) {
      for (const std::int64_t tokens : kLengths) {
        for (const bool record : {false, true}) {
          expect_exact(*model, {.batch = batch, .tokens = tokens, .dtype = model->dtype()}, record);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, CheckpointPlan, ::testing::ValuesIn(names_in("checkpoints")),
                         [](const auto& item) { return item.param; });

class Seq2SeqPlan : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }

  // `self`, `cross`: kinds of the two caches.
  void expect_exact(const Seq2SeqLM& model, const PlanInput& input, const std::string& self,
                    const std::string& cross) {
    SCOPED_TRACE(c10::str(self, " and ", cross, ", ", input.dtype, ", ", input.batch, " x ",
                          input.tokens, ", encoder ", input.cross_batch, " x ",
                          input.cross_tokens));
    const auto memory = std::make_shared<FailingMemory>();
    const std::vector<LayerSpec> layers = model.config().layer_specs();
    EncoderDecoderCache cache(
        make(self, layers, input.tokens, memory),
        make(cross, cross_attention_layers(layers), input.cross_tokens, memory));
    const CachePlan plan = cache.plan(input);
    EXPECT_EQ(memory->allocations(), 0);
    EXPECT_EQ(plan.layers.size(), 2 * layers.size());
    cache.reserve(input.tokens);
    model.forward({.input_ids = text(input.batch, input.tokens),
                   .logits_to_keep = 1,
                   .encoder = EncoderInput{text(input.cross_batch, input.cross_tokens)}},
                  &cache);
    EXPECT_EQ(plan.total, cache.allocated_bytes());
    EXPECT_EQ(plan.total, memory->live_bytes());
  }
};

TEST_P(Seq2SeqPlan, IsWhatAPrefillAllocates) {
  for (const at::ScalarType dtype : kDtypes) {
    const auto model =
        load_seq2seq_model(kParity / "seq2seq_checkpoints" / GetParam(), {.dtype = dtype});
    for (const std::int64_t tokens : kLengths) {
      for (const std::int64_t cross_tokens : kLengths) {
        PlanInput input{.tokens = tokens, .dtype = dtype, .cross_tokens = cross_tokens};
        for (const auto& [batch, encoder] : {std::pair(1, 1), std::pair(3, 3), std::pair(3, 1)}) {
          input.batch = batch;
          input.cross_batch = encoder;
          expect_exact(*model, input, "dynamic", "dynamic");
          expect_exact(*model, input, "static", "static");
        }
        expect_exact(*model, input, "dynamic", "static");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Seq2SeqPlan,
                         ::testing::ValuesIn(names_in("seq2seq_checkpoints")),
                         [](const auto& item) { return item.param; });

}  // namespace
}  // namespace kvcache
