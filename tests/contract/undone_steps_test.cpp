// Steps that end early, at every layer and every allocation, leave no trace.

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "tests/contract/undone.h"

namespace kvcache::testing {
namespace {

// States that fit no layer, where it has some, and keys that fit none.
void offer_what_is_refused(Step& step, const Subject& subject, const StepPlan& plan,
                           std::int64_t layer) {
  const KeyValue keys = subject.states(plan, layer);
  EXPECT_THROW(step.append(layer, keys.keys, {}), ValueError);
  EXPECT_THROW(step.append(layer, keys.keys.narrow(2, 0, 0), keys.values), ValueError);
  const at::Tensor& wrong = keys.keys;  // of four dimensions, and of another batch or tokens
  EXPECT_THROW(step.update_conv_state(layer, wrong, {.kernel_size = 3}), ValueError);
  EXPECT_THROW(step.update_recurrent_state(layer, wrong.narrow(0, 0, 0)), ValueError);
  if (Step* encoder = step.cross()) {
    EXPECT_THROW(step.cross_view(layer), RuntimeError);
    EXPECT_THROW(encoder->append(layer, {}, {}), ValueError);
    EXPECT_THROW(encoder->commit(), RuntimeError);
  }
}

// Whether no layer from `layer` on has to be given anything.
bool ends_here(const CacheModel& model, std::int64_t layer) {
  while (layer < model.layers() && model.spec(layer).type == kDummy) ++layer;
  return layer == model.layers();
}

// Dropped after any number of layers, or after keys that fit no layer.
void drop_at_every_layer(const Subject& start, const StepPlan& plan, const StepPlan& next) {
  for (std::int64_t stop = 0; stop <= start.model.layers(); ++stop) {
    Subject subject = start.clone();
    {
      Step step = begin_step(subject, plan);
      for (std::int64_t layer = 0; layer < stop; ++layer) feed_layer(step, subject, plan, layer);
      EXPECT_THROW(step.append(-1, {}, {}), ValueError);
      if (stop < start.model.layers()) {
        offer_what_is_refused(step, subject, plan, stop);
        // A cache that makes its layers lazily may be done with fewer.
        if (subject.layers().layer_count() > stop && !ends_here(start.model, stop)) {
          EXPECT_THROW(step.commit(), RuntimeError);
        }
      }
    }
    expect_undone(subject, start, next);
  }
}

// Dropped between what one layer is given.
void drop_within_every_layer(const Subject& start, const StepPlan& plan, const StepPlan& next) {
  for (std::int64_t last = 0; last < start.model.layers(); ++last) {
    for (std::size_t given = 1; given < layer_calls(start, plan, last).size(); ++given) {
      Subject subject = start.clone();
      {
        Step step = begin_step(subject, plan);
        for (std::int64_t layer = 0; layer < last; ++layer) feed_layer(step, subject, plan, layer);
        const auto calls = layer_calls(subject, plan, last);
        for (std::size_t i = 0; i < given; ++i) calls[i](step);
        if (start.model.seen() > 0 || start.model.spec(last).state_sizes) {
          EXPECT_THROW(step.commit(), RuntimeError);
        }
      }
      expect_undone(subject, start, next);
    }
  }
}

// Whether the step came to an end with the allocation after `allowed` ones refused. If not, the
// failing call is made again if `retry`, and the step then ends; else it is dropped.
bool step_with_refusal(Subject& subject, const StepPlan& plan, std::int64_t allowed, bool retry) {
  subject.memory->fail_after(allowed);
  bool refused = false;
  const auto attempt = [&](const auto& call) {
    try {
      call();
    } catch (const c10::OutOfMemoryError&) {
      refused = true;
      if (retry) call();
    }
  };
  Step step = begin_step(subject, plan);
  for (std::int64_t layer = 0; layer < subject.model.layers(); ++layer) {
    for (const auto& call : layer_calls(subject, plan, layer)) {
      attempt([&] { call(step); });
      if (refused && !retry) return false;
    }
  }
  attempt([&] { step.commit(); });
  if (refused && !retry) return false;
  note_step(subject, plan);
  return !refused;
}

void refuse_every_allocation(const Subject& start, const StepPlan& plan, const StepPlan& next) {
  for (std::int64_t allowed = 0;; ++allowed) {
    Subject dropped = start.clone();
    Subject retried = start.clone();
    const bool done = step_with_refusal(dropped, plan, allowed, /*retry=*/false);
    start.memory->fail_after(std::nullopt);
    if (done) return;
    expect_undone(dropped, start, next);
    step_with_refusal(retried, plan, allowed, /*retry=*/true);
    Subject control = start.clone();
    take_step(control, plan);
    ASSERT_EQ(difference(control.digest(), retried.digest()), "");
  }
}

class UndoneSteps : public UndoneTest {};

TEST_P(UndoneSteps, DroppedAtEveryLayer) { sweep(4, drop_at_every_layer); }
TEST_P(UndoneSteps, DroppedWithinEveryLayer) { sweep(2, drop_within_every_layer); }
TEST_P(UndoneSteps, RefusedMemoryAtEveryAllocation) { sweep(4, refuse_every_allocation); }

std::unique_ptr<Cache> moved_out_of(Cache& cache) {
  if (auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache)) {
    return std::make_unique<EncoderDecoderCache>(std::move(*pair));
  }
  return std::make_unique<LayeredCache>(std::move(dynamic_cast<LayeredCache&>(cache)));
}

void move_back(Cache& moved, Cache& cache) {
  if (auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache)) {
    *pair = std::move(dynamic_cast<EncoderDecoderCache&>(moved));
  } else {
    dynamic_cast<LayeredCache&>(cache) = std::move(dynamic_cast<LayeredCache&>(moved));
  }
}

// The step survives a move of its cache, and a moved step.
TEST_P(UndoneSteps, CacheMovesWhileAStepIsOpen) {
  Subject subject(GetParam(), 7);
  take_step(subject, subject.plan(3));
  const StepPlan plan = subject.plan(2);
  Step first = begin_step(subject, plan);
  feed_layer(first, subject, plan, 0);
  const std::unique_ptr<Cache> moved = moved_out_of(*subject.cache);
  Step step = std::move(first);
  EXPECT_THROW(first.commit(), RuntimeError);
  for (std::int64_t layer = 1; layer < subject.model.layers(); ++layer) {
    feed_layer(step, subject, plan, layer);
  }
  EXPECT_THROW(moved->crop(0), RuntimeError);
  EXPECT_THROW(moved->reset(), RuntimeError);
  step.commit();
  EXPECT_THROW(step.commit(), RuntimeError);
  note_step(subject, plan);
  move_back(*moved, *subject.cache);
  expect_contract(subject);
}

// Gives a layer of its own, made as layer `index` is, what a step would.
void feed_ports(Layer& layer, const Subject& subject, const StepPlan& plan, std::int64_t index) {
  if (KeyValuePort* port = layer.key_values()) {
    const KeyValue states = subject.states(plan, index);
    port->append(states.keys, states.values, layer.seen());
  }
  StatePort* port = layer.states();
  for (std::int64_t i = 0; i < subject.model.convolutions(index); ++i) {
    const StateIndex state{index, i};
    port->update_conv_state(conv_inputs_of(plan.added, {0, plan.tokens()}, state, subject.setting),
                            {.kernel_size = state.taps(), .index = i});
  }
  for (std::int64_t i = 0; i < subject.model.recurrences(index); ++i) {
    const std::int64_t wanted = port->wanted_states(plan.tokens());
    port->update_recurrent_state(
        recurrent_states_of(plan.added, {1, wanted + 1}, {index, i}, subject.setting), i);
  }
}

// Invariant 6. Every ATen call counts, so nothing can allocate or write behind the memory's back.
TEST_P(UndoneSteps, PublishTouchesNoTensor) {
  const Setting& setting = GetParam();
  for (std::size_t i = 0; i < setting.kind.layers.size(); ++i) {
    Subject subject(setting, 3);
    const std::unique_ptr<Layer> layer =
        setting.kind.registry.make(setting.kind.layers[i], subject.memory);
    if (layer->key_values() == nullptr && layer->states() == nullptr) continue;  // keeps nothing
    if (setting.recorded) layer->activate_past_recording(std::nullopt);
    std::int64_t fed = 0;
    for (const std::int64_t tokens : {3, 1, 1, 1, 30, 1, 2, 9}) {
      if (layer->room().value_or(tokens) < tokens) continue;
      const StepPlan plan = subject.plan(tokens);
      fed += tokens;
      if (tokens == 2) (void)layer->fork();
      static thread_local std::int64_t calls = 0;
      calls = 0;
      const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            ++calls;
            return nullptr;
          }));
      feed_ports(*layer, subject, plan, std::int64_t(i));
      layer->seal();
      EXPECT_GT(calls, 0);  // the callback counts
      const std::int64_t allocations = subject.memory->allocations();
      calls = 0;
      layer->publish(tokens);
      at::removeCallback(handle);
      EXPECT_EQ(calls, 0);
      EXPECT_EQ(subject.memory->allocations(), allocations);
    }
    EXPECT_EQ(layer->seen(), fed);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, UndoneSteps, ::testing::ValuesIn(settings()),
                         [](const auto& setting) { return name_of(setting.param); });

}  // namespace
}  // namespace kvcache::testing
