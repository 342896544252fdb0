// resilient_generate() where a device's memory really ends.
#include "kvcache/generation/resilient_generate.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcache/models/decoder.h"
#include "tests/support/sim/sim.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

using ::testing::HasSubstr;

c10::DeviceAllocator& memory() { return *c10::getDeviceAllocator(c10::kPrivateUse1); }

std::int64_t active() { return memory().getDeviceStats(0).active_bytes[0].current; }
std::int64_t peak() { return memory().getDeviceStats(0).active_bytes[0].peak; }
std::int64_t reserved() { return memory().getDeviceStats(0).reserved_bytes[0].current; }

// The device's bytes in use each time a token is to be chosen.
class Gauge final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    sim::synchronize();
    bytes.push_back(active());
    return scores;
  }
  std::vector<std::int64_t> bytes;
};

class ResilientOnADevice : public ::testing::Test {
 protected:
  ResilientOnADevice() {
    const ModelConfig config = tiny_config("full");
    const LoadOptions options{.dtype = at::kFloat, .device = sim::device(0)};
    model_ = std::make_unique<DecoderModel>(config, StateDict(tiny_weights(config), options),
                                            options, DecoderStyle{});
    sim::synchronize();
    weights_ = active();
  }

  struct Run {
    at::Tensor sequences;
    std::int64_t peak = 0;
    std::vector<std::int64_t> bytes;  // at each choice
  };

  Run alone(const GenerationConfig& config) const {
    const auto gauge = std::make_shared<Gauge>();
    memory().resetPeakStats(0);
    const Output output =
        generate(*model_, {.input_ids = kPrompt, .logits_processors = {gauge}}, config);
    sim::synchronize();
    return {output.sequences, peak(), gauge->bytes};
  }

  static inline const at::Tensor kPrompt = at::arange(5, 61, at::kLong).unsqueeze(0);
  std::unique_ptr<CausalLM> model_;
  std::int64_t weights_ = 0;
};

TEST_F(ResilientOnADevice, TheCheaperAttemptFits) {
  const GenerationConfig config{.max_new_tokens = 5};
  GenerationConfig pieces = config;
  pieces.prefill_chunk_size = 4;
  const Run dear = alone(config), cheap = alone(pieces);
  ASSERT_GT(dear.peak, cheap.peak + 1024);
  ASSERT_TRUE(dear.sequences.equal(cheap.sequences));
  EXPECT_EQ(active(), weights_);

  sim::configure({.memory_limit = (dear.peak + cheap.peak) / 2});
  EXPECT_THROW(alone(config), c10::OutOfMemoryError);
  const auto gauge = std::make_shared<Gauge>();
  {
    const ResilientOutput made = resilient_generate(
        *model_, {.input_ids = kPrompt, .logits_processors = {gauge}}, {config, pieces});
    EXPECT_TRUE(made.output.sequences.equal(cheap.sequences));
    ASSERT_EQ(made.attempts.size(), 2U);
    EXPECT_THAT(made.attempts[0].error, HasSubstr("simulated device out of memory"));
    EXPECT_EQ(made.attempts[1].error, "");
    EXPECT_EQ(gauge->bytes, cheap.bytes);  // nothing of the first attempt is there
  }
  sim::synchronize();
  EXPECT_EQ(active(), weights_);
}

TEST_F(ResilientOnADevice, AllFailAndNothingStays) {
  const GenerationConfig config{.max_new_tokens = 5};
  GenerationConfig fixed = config;
  fixed.cache_implementation = "static";
  sim::synchronize();
  sim::configure({.memory_limit = weights_ + 4096});
  std::string message;
  try {
    resilient_generate(*model_, {.input_ids = kPrompt}, {config, fixed});
  } catch (const c10::OutOfMemoryError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_THAT(message, HasSubstr("1, cache \"dynamic\" of "));
  EXPECT_THAT(message, HasSubstr("; 2, cache \"static\" of "));
  sim::synchronize();
  EXPECT_EQ(active(), weights_);
  EXPECT_EQ(reserved(), weights_);  // the allocator keeps nothing back
}

}  // namespace
}  // namespace kvcache::testing
