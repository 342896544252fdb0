// Replays the traces of linear and hybrid layers (goldens/traces/README.md): a step is given each
// layer's keys and states.

#include <ATen/ops/neg.h>

#include <array>

#include "tests/parity/trace_replay.h"

namespace kvcache {
namespace {

using namespace testing::traces;

class LinearReplay : public Replay {
 public:
  explicit LinearReplay(const json& trace) : Replay(cache_of(trace, specs_of(trace))) {}

 private:
  bool feed(const json& op) override {
    if (op.at("op") != "step") return false;
    step(op);
    return true;
  }

  void record(std::optional<std::int64_t> max_tokens) override {
    cache_.activate_past_recording(max_tokens);
    most_ = max_tokens.value_or(16);
  }

  void step(const json& op) {
    const at::Tensor numbers = tokens_of(op);
    const std::int64_t count = numbers.size(1);
    Step step = cache_.begin_step({.tokens = count, .batch = numbers.size(0)});
    for (std::int64_t layer = 0; layer < cache_.layer_count(); ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      if (!op.at("keys")[at].is_null()) {
        const auto [columns, offset] = cache_.get_mask_sizes(count, layer);
        EXPECT_EQ((Numbers{columns, offset}), op.at("mask")[at].get<Numbers>());
        const at::Tensor keys = keys_of(numbers);
        const View view = step.append(layer, keys, keys.neg());
        const Rows expected = rows_written_out(op.at("keys")[at]);
        EXPECT_EQ(view.visible.offset, offset);
        EXPECT_EQ(numbers_of(dense(view).keys), expected);
        EXPECT_EQ(numbers_of(dense(view).values.neg()), expected);
      }
      std::int64_t index = 0;
      for (const json& window : op.at("windows")[at]) {
        give_states(step, {layer, index++}, numbers, rows_written_out(window));
      }
    }
    step.commit();
  }

  struct StateOf {
    std::int64_t layer, index;
  };

  void give_states(Step& step, StateOf state, const at::Tensor& numbers, const Rows& window) const {
    const at::Tensor inputs = step.update_conv_state(
        state.layer, numbers.unsqueeze(1), {.kernel_size = 3 + state.index, .index = state.index});
    EXPECT_EQ(numbers_of(inputs), window);
    const std::int64_t tokens = numbers.size(1), wanted = step.wanted_states(state.layer);
    EXPECT_EQ(wanted, std::min(tokens, most_ + 1));
    const at::Tensor states =
        numbers.narrow(1, tokens - wanted, wanted).transpose(0, 1).unsqueeze(2);
    step.update_recurrent_state(state.layer, states, state.index);
  }

  void check_state_after(const json& op) override {
    const auto length = op.at("length").get<std::int64_t>();
    const std::vector<KeyValue> layers = testing::stored(cache_);
    std::size_t with_keys = 0;
    for (std::int64_t layer = 0; layer < cache_.layer_count(); ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      EXPECT_EQ(cache_.get_seq_length(layer), length);
      if (!op.at("stored")[at].is_null()) {
        expect_stored(layers.at(with_keys++), rows_written_out(op.at("stored")[at]));
      }
      check_recurrent(layer, op.at("recurrent")[at].get<Rows>());
    }
  }

  // As a step would find it, where there is room for one; that step is dropped.
  void check_recurrent(std::int64_t layer, const Rows& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(cache_.has_previous_state(layer, std::int64_t(i)), !expected[i].empty());
    }
    if (expected.empty() || cache_.capacity() == cache_.get_seq_length()) return;
    const std::int64_t rows = std::max<std::int64_t>(cache_.batch_size(), 1);
    Step step = cache_.begin_step({.tokens = 1, .batch = rows});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto state = step.recurrent_state(layer, std::int64_t(i));
      ASSERT_EQ(state.has_value(), !expected[i].empty());
      if (!state) continue;
      Numbers found;
      for (const Numbers& row : numbers_of(*state)) found.push_back(row.at(0));
      EXPECT_EQ(found, expected[i]);
    }
  }

  LayeredCache& cache_ = static_cast<LayeredCache&>(cache());
  std::int64_t most_ = 0;  // tokens recorded
};

constexpr std::array kGroups = {"linear", "hybrid", "hybrid_sliding", "linear_mixed",
                                "static_linear"};

class LinearTraces : public ::testing::TestWithParam<const char*> {};

TEST_P(LinearTraces, Replay) { replay_group<LinearReplay>(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Parity, LinearTraces, ::testing::ValuesIn(kGroups),
                         [](const auto& group) { return std::string(group.param); });

TEST(LinearTraceFiles, AllAreThere) { EXPECT_EQ(count_traces(kGroups), 222U); }

}  // namespace
}  // namespace kvcache
