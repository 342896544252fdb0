// What layers are given in a step, and what they hand back.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/contract/subject.h"

namespace kvcache::testing {
namespace {

KeyValue expected_states(const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  const Visible visible = subject.model.visible(layer, plan.tokens());
  return states_of(joined(subject.model.rows, plan.added),
                   {visible.offset, visible.offset + visible.length}, subject.model.source(layer),
                   subject.setting);
}

// Equal, or where codecs are not exact as near as they promise.
bool are_near(const at::Tensor& found, const at::Tensor& right, const Setting& setting) {
  if (setting.kind.error == 0) return at::equal(found, right);
  return found.sizes() == right.sizes() && (found.to(at::kFloat) - right.to(at::kFloat))
                                               .abs()
                                               .le(setting.kind.error)
                                               .all()
                                               .item<bool>();
}

}  // namespace

void expect_joined(const KeyValue& joined, const Subject& subject, const StepPlan& plan,
                   std::int64_t layer) {
  const KeyValue expected = expected_states(subject, plan, layer);
  const std::int64_t length = expected.keys.size(2);
  const std::int64_t columns = subject.model.columns(layer, plan.tokens());
  for (const auto& [found, right] :
       {std::pair(joined.keys, expected.keys), std::pair(joined.values, expected.values)}) {
    ASSERT_EQ(found.size(2), columns);
    EXPECT_TRUE(are_near(found.narrow(2, 0, length), right, subject.setting));
    EXPECT_TRUE(found.narrow(2, length, columns - length).eq(0).all().item<bool>());
  }
}

void expect_view(const View& view, const Subject& subject, const StepPlan& plan,
                 std::int64_t layer) {
  const CacheModel& model = subject.model;
  const Visible visible = model.visible(layer, plan.tokens());
  EXPECT_EQ(view.visible, visible);
  EXPECT_EQ(view.batch, plan.batch());
  std::int64_t next = visible.offset;
  for (const Segment& segment : view.segments) {
    EXPECT_EQ(segment.first, next);
    EXPECT_EQ(segment.packed ? segment.packed->values.tokens() : segment.values.size(2),
              segment.length());
    next += segment.length();
  }
  EXPECT_EQ(next, visible.offset + visible.length);
  const KeyValue expected = expected_states(subject, plan, layer);
  const KeyValue found = dense(view);
  EXPECT_EQ(found.keys.dtype(), expected.keys.dtype());
  EXPECT_TRUE(are_near(found.keys, expected.keys, subject.setting)) << found.keys << expected.keys;
  EXPECT_TRUE(are_near(found.values, expected.values, subject.setting));
}

namespace {

void feed_keys(Step& step, const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  const KeyValue states = subject.states(plan, layer);
  expect_view(step.append(layer, states.keys, states.values), subject, plan, layer);
  if (subject.model.is_donor(layer)) return;
  states.keys.fill_(-7);  // what is kept does not alias what was given
  states.values.fill_(-7);
}

void feed_convolution(Step& step, const Subject& subject, const StepPlan& plan, StateIndex state) {
  const std::int64_t seen = subject.model.seen(), end = seen + plan.tokens();
  const TokenRows rows = joined(subject.model.rows, plan.added);
  const at::Tensor inputs = conv_inputs_of(rows, {seen, end}, state, subject.setting);
  const at::Tensor found = step.update_conv_state(
      state.layer, inputs, {.kernel_size = state.taps(), .index = state.index});
  const at::Tensor expected =
      conv_inputs_of(rows, {seen - state.taps() + 1, end}, state, subject.setting);
  EXPECT_TRUE(at::equal(found, expected)) << found << expected;
  inputs.fill_(-7);
}

void feed_recurrence(Step& step, const Subject& subject, const StepPlan& plan, StateIndex state) {
  const CacheModel& model = subject.model;
  const std::int64_t seen = model.seen(), end = seen + plan.tokens();
  const TokenRows rows = joined(model.rows, plan.added);
  const auto previous = step.recurrent_state(state.layer, state.index);
  EXPECT_EQ(previous.has_value(), seen > 0);
  if (previous) {
    EXPECT_TRUE(at::equal(*previous,
                          recurrent_states_of(rows, {seen, seen + 1}, state, subject.setting)[0]));
  }
  const std::int64_t wanted = step.wanted_states(state.layer);
  EXPECT_EQ(wanted, model.wanted_states(state.layer, plan.tokens()));
  const at::Tensor states =
      recurrent_states_of(rows, {end - wanted + 1, end + 1}, state, subject.setting);
  const at::Tensor last = step.update_recurrent_state(state.layer, states, state.index);
  EXPECT_TRUE(at::equal(last, states[wanted - 1]));
  states.fill_(-7);
}

// The encoder's keys and values of a layer; the decoder's own differ by their content.
KeyValue encoder_states(const TokenRows& rows, std::int64_t layer, const Setting& setting) {
  return states_of(rows, {0, std::int64_t(rows[0].size())}, layer, setting);
}

void feed_encoder(Step& step, const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  const KeyValue states = encoder_states(*plan.encoder, layer, subject.setting);
  step.cross()->append(layer, states.keys, states.values);
  states.keys.fill_(-7);
  states.values.fill_(-7);
}

// What the queries of this layer read of the encoder: all of it, a row for each of its rows.
void expect_encoder_view(Step& step, const Subject& subject, const StepPlan& plan,
                         std::int64_t layer) {
  const TokenRows& rows =
      subject.computes_encoder(plan) ? *plan.encoder : subject.model.encoder.rows;
  const View view = step.cross_view(layer);
  EXPECT_EQ(view.batch, std::int64_t(rows.size()));
  EXPECT_EQ(view.visible.offset, 0);
  EXPECT_EQ(view.visible.length, std::int64_t(rows[0].size()));
  const std::optional<at::Tensor> valid = step.cross_valid(), right = cross_input(rows).valid;
  EXPECT_EQ(valid.has_value(), right.has_value());
  EXPECT_TRUE(!valid || !right || at::equal(*valid, right->to(at::kBool)));
  const KeyValue expected = encoder_states(rows, layer, subject.setting), found = dense(view);
  EXPECT_TRUE(at::equal(found.keys, expected.keys)) << found.keys << expected.keys;
  EXPECT_TRUE(at::equal(found.values, expected.values));
}

}  // namespace

std::vector<std::function<void(Step&)>> layer_calls(const Subject& subject, const StepPlan& plan,
                                                    std::int64_t layer) {
  std::vector<std::function<void(Step&)>> calls;
  if (subject.model.has_keys(layer)) {
    calls.push_back([&, layer](Step& step) { feed_keys(step, subject, plan, layer); });
  } else if (subject.model.source(layer) != layer) {
    calls.push_back(
        [&, layer](Step& step) { expect_view(step.view(layer), subject, plan, layer); });
  }
  for (std::int64_t index = 0; index < subject.model.convolutions(layer); ++index) {
    calls.push_back([&, layer, index](Step& step) {
      feed_convolution(step, subject, plan, {layer, index});
    });
  }
  for (std::int64_t index = 0; index < subject.model.recurrences(layer); ++index) {
    calls.push_back([&, layer, index](Step& step) {
      feed_recurrence(step, subject, plan, {layer, index});
    });
  }
  if (subject.computes_encoder(plan)) {
    calls.push_back([&, layer](Step& step) { feed_encoder(step, subject, plan, layer); });
  }
  return calls;
}

void feed_layer(Step& step, const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  for (const auto& call : layer_calls(subject, plan, layer)) call(step);
  if (subject.setting.kind.encoder) expect_encoder_view(step, subject, plan, layer);
}

}  // namespace kvcache::testing
