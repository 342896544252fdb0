// Replays goldens/traces/quantized.json: sequences of operations on the oracle's quantized caches.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "kvcache/cache/quantized_cache.h"
#include "tests/parity/trace_file.h"
#include "tests/support/codec_values.h"
#include "tests/support/tensors.h"

namespace kvcache::testing::traces {
namespace {

constexpr int kLayers = 2;
constexpr std::int64_t kHeads = 2, kHeadDim = 16;

QuantizedCacheConfig config_of(const json& settings) {
  QuantizedCacheConfig config{.backend = settings.at("backend")};
  if (config.backend == "fp8") return config;
  config.nbits = settings.at("nbits");
  config.axis_key = settings.at("axis_key");
  config.axis_value = settings.at("axis_value");
  config.q_group_size = settings.at("q_group_size");
  config.residual_length = settings.at("residual_length");
  return config;
}

class QuantizedReplay {
 public:
  explicit QuantizedReplay(const json& trace)
      : cache_(std::vector<LayerSpec>(kLayers), {.config = config_of(trace.at("config"))}),
        bound_(trace.at("bound")) {}

  void apply(const json& op) {
    const std::string name = op.at("op");
    if (name == "update") {
      update(op);
    } else if (name == "reorder_cache") {
      const at::Tensor rows = at::tensor(op.at("indices").get<Numbers>(), at::kLong);
      cache_.reorder_cache(rows);
      fed_ = fed_.index_select(0, rows);
    } else {
      ASSERT_EQ(name, "reset");
      cache_.reset();
      fed_.reset();
    }
    const auto lengths = op.at("length").get<Numbers>();
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(cache_.get_seq_length(layer), lengths[static_cast<std::size_t>(layer)]);
    }
  }

 private:
  void update(const json& op) {
    const auto count = op.at("count").get<std::int64_t>();
    const at::Tensor states = codec_values({op.at("rows"), kHeads, count, kHeadDim}, op.at("salt"));
    fed_ = fed_.defined() ? at::cat({fed_, states}, 2) : states;
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto [length, offset] = cache_.get_mask_sizes(count, layer);
      EXPECT_EQ((Numbers{length, offset}),
                op.at("mask")[static_cast<std::size_t>(layer)].get<Numbers>());
      const KeyValue result = cache_.update(states, -states, layer);
      ASSERT_EQ(result.keys.sizes(), fed_.sizes());
      EXPECT_LE(difference(result.keys, fed_), bound_);
      EXPECT_LE(difference(result.values, -fed_), bound_);
      const at::Tensor own = result.keys.narrow(2, fed_.size(2) - count, count);
      EXPECT_EQ(difference(own, states), 0);  // a step sees its own tokens as they are
    }
  }

  QuantizedCache cache_;
  double bound_;
  at::Tensor fed_;
};

TEST(QuantizedTraces, LengthsMasksAndErrorsAreAsRecorded) {
  const json traces = read_traces("quantized");
  ASSERT_EQ(traces.size(), 60U);
  for (const json& trace : traces) {
    SCOPED_TRACE(trace.at("name").get<std::string>() + " " + trace.at("config").dump());
    QuantizedReplay replay(trace);
    for (const json& op : trace.at("ops")) replay.apply(op);
  }
}

}  // namespace
}  // namespace kvcache::testing::traces
