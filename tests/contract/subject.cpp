#include "tests/contract/subject.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace kvcache::testing {
namespace {

at::Tensor index_tensor(const std::vector<std::int64_t>& rows) {
  return at::tensor(rows, at::kLong);
}

template <typename Number, typename Value>
at::Tensor table(const TokenRows& rows, at::ScalarType dtype, const Value& value) {
  at::Tensor result = at::empty({std::int64_t(rows.size()), std::int64_t(rows[0].size())}, dtype);
  auto* out = result.data_ptr<Number>();
  for (const auto& row : rows) {
    for (const Token& token : row) *out++ = value(token);
  }
  return result;
}

TokenRows joined(TokenRows rows, const TokenRows& added) {
  if (rows.empty()) return added;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].insert(rows[i].end(), added[i].begin(), added[i].end());
  }
  return rows;
}

struct Place {
  const void* address;
  bool kept;  // the cache may write there, or all rows are one: reorder leaves it where it is
};

std::vector<Place> places(LayeredCache& cache) {
  struct Collect final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      found.push_back(
          {tensor.defined() ? tensor.const_data_ptr() : nullptr, info.writable || !info.batch_dim});
    }
    void count(std::string_view, std::int64_t&) override {}
    std::vector<Place> found;
  };
  Collect collect;
  cache.visit(collect);
  return collect.found;
}

bool lengths_differ(const LayeredCache& cache) {
  for (std::int64_t i = 1; i < cache.layer_count(); ++i) {
    if (cache.get_seq_length(i) != cache.get_seq_length(0)) return true;
  }
  return false;
}

// In the middle of a round of updates every whole-cache operation refuses.
void expect_unfinished_round_refuses(Subject& subject) {
  if (!lengths_differ(*subject.cache)) return;
  LayeredCache& cache = *subject.cache;
  const Digest before = subject.digest();
  EXPECT_THROW(cache.crop(0), RuntimeError);
  EXPECT_THROW(cache.clone(), RuntimeError);
  EXPECT_THROW(cache.reorder_cache(index_tensor({0})), RuntimeError);
  EXPECT_THROW(cache.batch_repeat_interleave(2), RuntimeError);
  EXPECT_THROW(cache.begin_step({.tokens = 1, .batch = cache.batch_size()}), RuntimeError);
  EXPECT_EQ(difference(before, subject.digest()), "");
}

}  // namespace

Subject::Subject(const Setting& of, std::uint64_t seed)
    : setting(of),
      memory(std::make_shared<FailingMemory>()),
      cache(of.kind.make(memory)),
      model(of),
      random(seed) {
  if (!setting.recorded) return;
  cache->activate_past_recording();
  model.record();
}

Subject Subject::clone() const { return with(cache->clone()); }
Subject Subject::fork() const { return with(cache->fork()); }

Subject Subject::with(std::unique_ptr<Cache> made) const {
  Subject copy(setting, 0);
  copy.memory = memory;
  copy.cache.reset(static_cast<LayeredCache*>(made.release()));
  copy.model = model;
  copy.random = random;
  copy.next_content_ = next_content_;
  return copy;
}

StepPlan Subject::plan(std::int64_t tokens) {
  const std::int64_t batch = model.rows.empty() ? setting.batch : model.batch();
  StepPlan plan;
  plan.added.resize(std::size_t(batch));
  for (auto& row : plan.added) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      row.push_back({.content = next_content_ % 1000 * 7, .id = random.below(50)});
      ++next_content_;
    }
  }
  return plan;
}

StepPlan Subject::random_plan() {
  const std::int64_t choice = random.below(12);
  StepPlan result = plan(choice < 7    ? 1 + random.below(3)
                         : choice < 11 ? 1 + random.below(12)
                                       : 40);
  result.with_ids = !random.one_in(6);
  if (!result.with_ids) {
    for (auto& row : result.added)
      std::for_each(row.begin(), row.end(), [](Token& t) { t.id = {}; });
  }
  const std::int64_t mask = random.below(6);
  if (mask > 1) return result;
  const auto pad = [&](TokenRows& rows) {
    for (auto& row : rows) {
      for (Token& token : row) token.real = !random.one_in(3);
    }
  };
  pad(result.added);
  result.mask = StepPlan::Mask::own;
  if (mask == 0 && model.seen() > 0) {
    result.mask = StepPlan::Mask::whole;
    result.past = model.rows;
    pad(result.past);
  }
  return result;
}

StepInput Subject::input(const StepPlan& plan) const {
  StepInput input{.tokens = plan.tokens(), .batch = plan.batch()};
  const auto real = [](const Token& token) { return token.real; };
  if (plan.with_ids) {
    input.ids = table<std::int64_t>(plan.added, at::kLong, [](const Token& t) { return *t.id; });
  }
  if (plan.mask == StepPlan::Mask::own) input.valid = table<bool>(plan.added, at::kBool, real);
  if (plan.mask == StepPlan::Mask::whole) {
    input.valid = table<std::int64_t>(joined(plan.past, plan.added), at::kLong, real);
  }
  return input;
}

KeyValue Subject::states(const StepPlan& plan, std::int64_t layer) const {
  return states_of(plan.added, {0, plan.tokens()}, layer, setting);
}

namespace {

KeyValue expected_states(const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  const Visible visible = subject.model.visible(layer, plan.tokens());
  return states_of(joined(subject.model.rows, plan.added),
                   {visible.offset, visible.offset + visible.length}, layer, subject.setting);
}

// A step or call that finds no room changes nothing.
template <typename Call>
void expect_no_room(Subject& subject, const Call& call) {
  const Digest before = subject.digest();
  EXPECT_THROW(call(), ValueError);
  EXPECT_EQ(difference(before, subject.digest()), "");
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
    EXPECT_TRUE(at::equal(found.narrow(2, 0, length), right));
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
    EXPECT_EQ(segment.values.size(2), segment.length());
    next += segment.length();
  }
  EXPECT_EQ(next, visible.offset + visible.length);
  const KeyValue expected = expected_states(subject, plan, layer);
  const KeyValue found = dense(view);
  EXPECT_EQ(found.keys.dtype(), expected.keys.dtype());
  EXPECT_TRUE(at::equal(found.keys, expected.keys)) << found.keys << expected.keys;
  EXPECT_TRUE(at::equal(found.values, expected.values));
}

void note_step(Subject& subject, const StepPlan& plan) {
  if (plan.mask == StepPlan::Mask::whole) subject.model.rows = plan.past;
  subject.model.append(plan.added);
}

namespace {

void feed_keys(Step& step, const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  const KeyValue states = subject.states(plan, layer);
  expect_view(step.append(layer, states.keys, states.values), subject, plan, layer);
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

}  // namespace

std::vector<std::function<void(Step&)>> layer_calls(const Subject& subject, const StepPlan& plan,
                                                    std::int64_t layer) {
  std::vector<std::function<void(Step&)>> calls;
  if (subject.model.has_keys(layer)) {
    calls.push_back([&, layer](Step& step) { feed_keys(step, subject, plan, layer); });
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
  return calls;
}

void feed_layer(Step& step, const Subject& subject, const StepPlan& plan, std::int64_t layer) {
  for (const auto& call : layer_calls(subject, plan, layer)) call(step);
}

void take_step(Subject& subject, const StepPlan& plan) {
  const CacheModel& model = subject.model;
  if (!model.fits(plan.tokens())) {
    expect_no_room(subject, [&] { subject.cache->begin_step(subject.input(plan)); });
    return;
  }
  Step step = subject.cache->begin_step(subject.input(plan));
  EXPECT_EQ(step.seen(), model.seen());
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < plan.batch(); ++row) {
    const auto at = std::size_t(row);
    const auto& past = plan.mask == StepPlan::Mask::whole ? plan.past[at] : std::vector<Token>{};
    std::int64_t next =
        plan.mask == StepPlan::Mask::whole
            ? std::count_if(past.begin(), past.end(), [](auto& t) { return t.real; })
            : model.real_tokens(row);
    for (const Token& token : plan.added[at]) positions.push_back(token.real ? next++ : 0);
  }
  EXPECT_TRUE(at::equal(step.positions().flatten(), index_tensor(positions)));
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    EXPECT_EQ(step.visible(layer), model.visible(layer, plan.tokens()));
    EXPECT_EQ(step.query_offset(layer), model.seen());
    feed_layer(step, subject, plan, layer);
    EXPECT_EQ(step.visible(layer), model.visible(layer, plan.tokens()));
  }
  step.commit();
  note_step(subject, plan);
}

void take_round(Subject& subject, const StepPlan& plan) {
  if (subject.model.has_states()) return take_step(subject, plan);
  StepPlan unknown{.added = plan.added};
  for (auto& row : unknown.added) {
    for (Token& token : row) token.id = {}, token.real = true;
  }
  std::vector<std::int64_t> order(std::size_t(subject.model.layers()));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), subject.random.engine);
  for (const std::int64_t layer : order) {
    const KeyValue states = subject.states(unknown, layer);
    if (!subject.model.fits(unknown.tokens())) {
      if (!subject.model.is_bounded(layer)) continue;
      expect_no_room(subject, [&] { subject.cache->append(states.keys, states.values, layer); });
      continue;
    }
    if (subject.random.one_in(2)) {
      expect_view(subject.cache->append(states.keys, states.values, layer), subject, unknown,
                  layer);
    } else {
      expect_joined(subject.cache->update(states.keys, states.values, layer), subject, unknown,
                    layer);
    }
    expect_unfinished_round_refuses(subject);
  }
  if (subject.model.fits(unknown.tokens())) note_step(subject, unknown);
}

void crop(Subject& subject, std::int64_t tokens) {
  LayeredCache& cache = *subject.cache;
  EXPECT_EQ(cache.can_crop(tokens), subject.model.can_crop(tokens));
  if (subject.model.can_crop(tokens)) {
    cache.crop(-tokens);
    subject.model.crop(tokens);
    return;
  }
  const Digest before = subject.digest();
  EXPECT_THROW(cache.crop(-tokens), RuntimeError);
  EXPECT_EQ(difference(before, subject.digest()), "");
}

void select(Subject& subject, const std::vector<std::int64_t>& rows) {
  subject.cache->batch_select_indices(index_tensor(rows));
  subject.model.select(rows);
}

void reorder(Subject& subject, const std::vector<std::int64_t>& rows) {
  const std::vector<Place> before = places(*subject.cache);
  subject.cache->reorder_cache(index_tensor(rows));
  const std::vector<Place> after = places(*subject.cache);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(after[i].kept);
    if (before[i].kept) {
      EXPECT_EQ(before[i].address, after[i].address);
    }
  }
  subject.model.select(rows);
}

void expand(Subject& subject, std::int64_t rows) {
  subject.cache->expand(rows);
  subject.model.expand(rows);
}

void repeat(Subject& subject, std::int64_t repeats) {
  subject.cache->batch_repeat_interleave(repeats);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < subject.model.batch(); ++row) {
    rows.insert(rows.end(), std::size_t(repeats), row);
  }
  subject.model.select(rows);
}

}  // namespace kvcache::testing
