// Replays the traces of EncoderDecoderCache (goldens/traces/README.md): a step is given the
// decoder's keys, and the encoder's where it asks for them.

#include "kvcache/cache/encoder_decoder_cache.h"

#include <ATen/ops/neg.h>

#include <array>

#include "tests/parity/trace_replay.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using namespace testing::traces;

class EncoderDecoderReplay : public Replay {
 public:
  explicit EncoderDecoderReplay(const json& trace) : Replay(pair_of(trace)) {}

 private:
  static std::unique_ptr<EncoderDecoderCache> pair_of(const json& trace) {
    const std::vector<LayerSpec> layers = specs_of(trace);
    return std::make_unique<EncoderDecoderCache>(
        cache_of(trace, layers),
        cache_of(trace, cross_attention_layers(layers), "encoder_max_cache_len"));
  }

  bool feed(const json& op) override {
    if (op.at("op") != "step") return false;
    step(op);
    return true;
  }

  void step(const json& op) {
    const at::Tensor numbers = tokens_of(op);
    const std::int64_t count = numbers.size(1);
    StepInput input{.tokens = count, .batch = numbers.size(0)};
    if (op.contains("encoder")) {
      const at::Tensor ids = testing::ids_tensor(rows_written_out(op.at("encoder")));
      input.cross = {.tokens = ids.size(1), .batch = ids.size(0), .ids = ids};
    }
    Step step = cache_.begin_step(input);
    for (std::int64_t layer = 0; layer < cache_.self_attention_cache().layer_count(); ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      const auto [columns, offset] = cache_.get_mask_sizes(count, layer);
      EXPECT_EQ((Numbers{columns, offset}), op.at("mask")[at].get<Numbers>());
      const at::Tensor keys = keys_of(numbers);
      expect_stored(dense(step.append(layer, keys, keys.neg())),
                    rows_written_out(op.at("keys")[at]));
      if (Step* encoder = step.cross()) {
        const at::Tensor encoded = keys_of(input.cross->ids->to(at::kFloat));
        encoder->append(layer, encoded, encoded.neg());
      }
      expect_stored(dense(step.cross_view(layer)), rows_written_out(op.at("cross")));
    }
    step.commit();
  }

  void reorder(const at::Tensor& rows) override {
    LayeredCache& cross = cache_.cross_attention_cache();
    const std::int64_t before = cross.batch_size();
    const std::vector<const void*> held = addresses(cross);
    cache_.reorder_cache(rows);
    if (cross.batch_size() == before) {
      EXPECT_EQ(addresses(cross), held);
    }
  }

  static std::vector<const void*> addresses(LayeredCache& cache) {
    std::vector<const void*> result;
    for (const KeyValue& states : testing::buffers(cache)) {
      result.push_back(states.keys.const_data_ptr());
    }
    return result;
  }

  void check_state_after(const json& op) override {
    const std::vector<KeyValue> own = testing::stored(cache_.self_attention_cache());
    const std::vector<KeyValue> encoded = testing::stored(cache_.cross_attention_cache());
    const Rows cross = rows_written_out(op.at("cross"));
    const std::int64_t length = cross.empty() ? 0 : std::int64_t(cross[0].size());
    EXPECT_EQ(cache_.cross_attention_cache().batch_size(), std::int64_t(cross.size()));
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto layer = static_cast<std::int64_t>(i);
      SCOPED_TRACE(c10::str("layer ", i));
      EXPECT_EQ(cache_.get_seq_length(layer), op.at("length").get<std::int64_t>());
      EXPECT_EQ(cache_.cross_attention_cache().get_seq_length(layer), length);
      EXPECT_EQ(cache_.is_updated(layer), op.at("is_updated").get<bool>());
      expect_stored(own[i], rows_written_out(op.at("stored")[i]));
      expect_stored(encoded[i], cross);
    }
  }

  EncoderDecoderCache& cache_ = static_cast<EncoderDecoderCache&>(cache());
};

constexpr std::array kGroups = {"encoder_decoder_named", "encoder_decoder",
                                "encoder_decoder_static"};

class EncoderDecoderTraces : public ::testing::TestWithParam<const char*> {};

TEST_P(EncoderDecoderTraces, Replay) { replay_group<EncoderDecoderReplay>(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Parity, EncoderDecoderTraces, ::testing::ValuesIn(kGroups),
                         [](const auto& group) { return std::string(group.param); });

TEST(EncoderDecoderTraceFiles, AllAreThere) { EXPECT_EQ(count_traces(kGroups), 107U); }

}  // namespace
}  // namespace kvcache
