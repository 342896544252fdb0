// The invariants that hold between any two operations.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/contract/subject.h"
#include "tests/support/stored.h"

namespace kvcache::testing {
namespace {

void expect_lengths(Subject& subject) {
  Cache& cache = *subject.cache;
  const CacheModel& model = subject.model;
  EXPECT_EQ(cache.batch_size(), model.batch());
  EXPECT_EQ(cache.capacity(), model.capacity());
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    EXPECT_EQ(cache.get_seq_length(layer), model.seen());
    for (std::int64_t index = 0; index < model.convolutions(layer); ++index) {
      EXPECT_EQ(cache.has_previous_state(layer, index), model.seen() > 0);
    }
    for (std::int64_t tokens = 1; tokens <= 3; ++tokens) {
      EXPECT_EQ(cache.get_mask_sizes(tokens, layer),
                std::pair(model.columns(layer, tokens), model.visible(layer, tokens).offset));
    }
  }
}

// held.end == seen and held.first is what the model says, which is never later than needed; of
// states, as many of the past ones as it says.
void expect_held(Subject& subject) {
  struct Check final : Visitor {
    explicit Check(const CacheModel& of) : model(of) {}

    void tensor(const TensorInfo&, at::Tensor&) override {}
    void count(std::string_view name, std::int64_t& value) override {
      if (name == "seen") ++layer;
      const std::optional<std::int64_t> right =
          name == "held_first"        ? std::optional(model.first_held(layer))
          : name == "held_end"        ? std::optional(model.seen())
          : name == "recorded_states" ? std::optional(model.recorded_states(layer))
                                      : std::nullopt;
      EXPECT_EQ(value, right.value_or(value)) << name << " of layer " << layer;
    }

    const CacheModel& model;
    std::int64_t layer = -1;
  };
  Check check(subject.model);
  subject.layers().visit(check);
}

// Bytes of a layer's states: without a token there are none.
std::int64_t state_bytes(const Subject& subject, std::int64_t layer) {
  const CacheModel& model = subject.model;
  const std::int64_t recorded = model.recorded_states(layer);
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < model.convolutions(layer); ++i) {
    bytes += (StateIndex{layer, i}.taps() - 1 + recorded) * kChannels *
             std::int64_t(at::elementSize(subject.setting.dtype));
  }
  for (std::int64_t i = 0; i < model.recurrences(layer); ++i) {
    bytes += std::min(recorded + 1, model.seen()) * kStateSize * std::int64_t(sizeof(float));
  }
  return model.seen() == 0 ? 0 : bytes * model.batch();
}

void expect_bytes(Subject& subject) {
  const CacheModel& model = subject.model;
  std::int64_t elements = 0, states = 0;
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    states += state_bytes(subject, layer);
    if (!model.has_keys(layer)) continue;
    const std::int64_t held = model.seen() - model.first_held(layer);
    const std::int64_t shared = model.shared_tokens(layer);
    elements +=
        (shared + (held - shared) * model.batch()) * subject.setting.heads * (kKeyDim + kValueDim);
  }
  elements += model.layers() * model.encoder.batch() * model.encoder.tokens() *
              subject.setting.heads * (kKeyDim + kValueDim);
  if (!subject.setting.kind.packed) {
    EXPECT_EQ(subject.cache->nbytes(),
              elements * std::int64_t(at::elementSize(subject.setting.dtype)) + states);
  }
  EXPECT_GE(subject.cache->allocated_bytes(), subject.cache->nbytes());
  EXPECT_EQ(subject.cache->allocated_bytes(), subject.memory->live_bytes());
}

struct Text {
  at::Tensor ids, valid;  // int64 and bool [rows, tokens]
};

// Of at least one row.
Text text_of(const TokenRows& rows) {
  const std::vector<std::int64_t> shape{std::int64_t(rows.size()), std::int64_t(rows[0].size())};
  Text text{at::empty(shape, at::kLong), at::empty(shape, at::kBool)};
  std::size_t at = 0;
  for (const auto& row : rows) {
    for (const Token& token : row) {
      text.ids.data_ptr<std::int64_t>()[at] = token.id.value_or(-1);
      text.valid.data_ptr<bool>()[at++] = token.real;
    }
  }
  return text;
}

// can_reuse() is the most of what is common that crop can go back to.
void expect_reusable(const Subject& subject, const Text& text, std::int64_t common) {
  const CacheModel& model = subject.model;
  const Cache& cache = *subject.cache;
  EXPECT_EQ(cache.common_prefix(text.ids, text.valid), common);
  std::int64_t reusable = common;
  while (reusable > 0 && !model.can_crop(model.seen() - reusable)) {
    EXPECT_FALSE(cache.can_crop(model.seen() - reusable));
    --reusable;
  }
  EXPECT_TRUE(reusable == 0 || cache.can_crop(model.seen() - reusable));
  EXPECT_EQ(cache.can_reuse(text.ids, text.valid), reusable) << "of " << common;
}

void expect_history(Subject& subject) {
  const CacheModel& model = subject.model;
  const History& history = subject.cache->history();
  EXPECT_EQ(history.seen(), model.seen());
  EXPECT_EQ(history.batch(), model.batch());
  EXPECT_EQ(history.known(), model.ids_known());
  EXPECT_EQ(history.batch(), std::int64_t(model.stamps.size()));
  if (model.rows.empty()) return;
  EXPECT_TRUE(at::equal(history.content().stamps, at::tensor(model.stamps, at::kLong)));
  const auto [ids, valid] = text_of(model.rows);
  EXPECT_TRUE(at::equal(history.valid(), valid));
  EXPECT_EQ(history.all_valid(), valid.all().item<bool>());
  if (!model.ids_known()) {
    EXPECT_THROW(history.ids(), RuntimeError);
    EXPECT_THROW(history.common_prefix(ids, valid), RuntimeError);
    EXPECT_THROW(subject.cache->can_reuse(ids, valid), RuntimeError);
    return;
  }
  EXPECT_TRUE(at::equal(history.ids(), ids));
  expect_reusable(subject, {ids, valid}, model.seen());
  if (model.seen() == 0) return;
  const std::int64_t differs = subject.random.below(model.seen());
  const std::int64_t row = subject.random.below(model.batch());
  ids[row][differs] += 1;
  const bool padding = !model.rows[std::size_t(row)][std::size_t(differs)].real;
  expect_reusable(subject, {ids, valid}, padding ? model.seen() : differs);
  expect_reusable(subject, {ids.narrow(1, 0, differs), valid.narrow(1, 0, differs)}, differs);
}

// All of an encoder's output is held, once for each of its rows, in every layer; or nothing is.
void expect_encoder(const Subject& subject) {
  LayeredCache* cache = subject.encoder_layers();
  if (!cache) return;
  const EncoderModel& model = subject.model.encoder;
  EXPECT_EQ(cache->batch_size(), model.batch());
  const std::int64_t room = std::max<std::int64_t>(cache->get_max_length(), 0);
  for (std::int64_t layer = 0; layer < subject.model.layers(); ++layer) {
    EXPECT_EQ(cache->get_seq_length(layer), model.tokens());
    EXPECT_EQ(dynamic_cast<EncoderDecoderCache&>(*subject.cache).is_updated(layer), model.held());
    EXPECT_EQ(cache->get_mask_sizes(1, layer),
              std::pair(std::max(model.tokens() + 1, room), std::int64_t{0}));
  }
  const History& history = cache->history();
  EXPECT_EQ(history.seen(), model.tokens());
  EXPECT_EQ(history.known(), model.ids_known());
  if (!model.held()) return;
  const Text text = text_of(model.rows);
  EXPECT_TRUE(at::equal(history.valid(), text.valid));
  if (model.ids_known()) {
    EXPECT_TRUE(at::equal(history.ids(), text.ids));
  }
  const std::vector<KeyValue> layers = stored(*cache);
  ASSERT_EQ(std::int64_t(layers.size()), subject.model.layers());
  for (std::int64_t i = 0; i < subject.model.layers(); ++i) {
    const KeyValue right = states_of(model.rows, {0, model.tokens()}, i, subject.setting);
    EXPECT_TRUE(at::equal(layers[std::size_t(i)].keys, right.keys)) << "layer " << i;
    EXPECT_TRUE(at::equal(layers[std::size_t(i)].values, right.values)) << "layer " << i;
  }
}

// A copy equals its source and goes on as the model says for three steps.
void expect_next_steps(const Subject& subject) {
  Subject copy = subject.clone();
  EXPECT_EQ(difference(subject.digest(), copy.digest()), "");
  for (int i = 0; i < 3; ++i) take_step(copy, copy.random_plan());
}

void expect_crops_as_told(Subject& subject) {
  std::vector<std::int64_t> counts(7);  // 0 to 6, and all
  std::iota(counts.begin(), counts.end(), 0);
  if (subject.model.seen() > 6) counts.push_back(subject.model.seen());
  for (const std::int64_t tokens : counts) {
    Subject copy = subject.random.one_in(2) ? subject.clone() : subject.fork();
    crop(copy, tokens);
    expect_lengths(copy);
    expect_held(copy);
    take_step(copy, copy.random_plan());
  }
}

// crop(-a), crop(-b) == crop(-a-b), where both can be had.
void expect_crops_add_up(Subject& subject) {
  const std::int64_t a = subject.random.below(4), b = subject.random.below(4);
  Subject twice = subject.clone();
  if (!twice.cache->can_crop(a)) return;
  crop(twice, a);
  if (!twice.cache->can_crop(b)) return;
  crop(twice, b);
  Subject once = subject.clone();
  ASSERT_TRUE(once.cache->can_crop(a + b));
  crop(once, a + b);
  EXPECT_EQ(difference(once.digest(), twice.digest()), "");
}

}  // namespace

void expect_contract(Subject& subject) {
  const Digest before = subject.digest();
  expect_lengths(subject);
  expect_held(subject);
  expect_bytes(subject);
  expect_history(subject);
  expect_encoder(subject);
  expect_next_steps(subject);
  expect_crops_as_told(subject);
  expect_crops_add_up(subject);
  EXPECT_EQ(difference(before, subject.digest()), "");
}

namespace {

// An encoder's inputs that are refused: any at all, where the cache is no pair.
void try_encoder_inputs(Subject& subject) {
  const std::int64_t batch = subject.plan(1).batch();
  const TokenRows some = subject.random_encoder_input(batch);
  const auto refused = [&](const std::optional<TokenRows>& encoder) {
    StepInput input{.tokens = 1, .batch = batch};
    if (encoder) input.cross = cross_input(*encoder);
    EXPECT_THROW(subject.cache->begin_step(input), ValueError);
  };
  if (!subject.encoder_layers()) return refused(some);
  const EncoderModel& held = subject.model.encoder;
  if (!held.held()) refused(std::nullopt);
  if (held.held() && subject.model.seen() > 0 && !held.holds(some, batch)) refused(some);
  if (held.ids_known() && subject.model.seen() > 0 && held.held()) {
    TokenRows changed = held.rows;
    auto& row = changed.back();
    const auto real = [](const Token& token) { return token.real; };
    Token& token = *std::find_if(row.begin(), row.end(), real);
    token.id = *token.id + 1;
    refused(changed);
    token.id = *token.id - 1;
    token.real = false;
    if (std::any_of(row.begin(), row.end(), real)) refused(changed);
  }
  TokenRows rows = some;
  rows.resize(std::size_t(batch) + 1, some[0]);
  refused(rows);
  TokenRows padding = some;
  for (Token& token : padding.back()) token.real = false;
  refused(padding);
  if (const auto most = subject.encoder_layers()->capacity()) {
    refused(TokenRows{std::vector<Token>(std::size_t(*most) + 1)});
  }
}

}  // namespace

void try_what_is_refused(Subject& subject) {
  Cache& cache = *subject.cache;
  const Digest before = subject.digest();
  const std::int64_t batch = cache.batch_size(), last = subject.model.layers() - 1;
  const StepPlan plan = subject.plan(2);
  const std::optional<CrossInput> cross = subject.input(plan).cross;
  const KeyValue good = subject.states(plan, last);
  const auto rows = [](std::vector<std::int64_t> indices) {
    return at::tensor(indices, at::kLong);
  };
  EXPECT_THROW(cache.crop(1), ValueError);
  EXPECT_THROW(cache.crop(-subject.model.seen() - 1), RuntimeError);
  EXPECT_THROW(cache.crop(std::numeric_limits<std::int64_t>::min()), RuntimeError);
  EXPECT_THROW(cache.batch_select_indices(rows({batch})), ValueError);
  EXPECT_THROW(cache.batch_select_indices(rows({-1})), ValueError);
  EXPECT_THROW(cache.batch_select_indices(at::empty({0}, at::kLong)), ValueError);
  EXPECT_THROW(cache.reorder_cache(rows(std::vector<std::int64_t>(std::size_t(batch) + 1))),
               ValueError);
  EXPECT_THROW(cache.batch_repeat_interleave(0), ValueError);
  EXPECT_THROW(cache.expand(0), ValueError);
  if (batch > 1) {
    EXPECT_THROW(cache.expand(2), RuntimeError);
  }
  EXPECT_THROW(cache.reserve(-1), ValueError);
  if (const auto most = subject.model.capacity()) {
    EXPECT_THROW(cache.reserve(*most + 1), ValueError);
    const std::int64_t above = *most + 1 - subject.model.seen();
    EXPECT_THROW(cache.begin_step({.tokens = above, .batch = plan.batch(), .cross = cross}),
                 ValueError);
  }
  if (!subject.model.can_record()) {
    EXPECT_THROW(cache.activate_past_recording(), RuntimeError);
  }
  EXPECT_THROW(cache.begin_step({.tokens = 0, .batch = plan.batch(), .cross = cross}), ValueError);
  EXPECT_THROW(cache.begin_step({.tokens = 2, .batch = 0, .cross = cross}), ValueError);
  EXPECT_THROW(cache.begin_step({.tokens = 2,
                                 .batch = plan.batch(),
                                 .ids = at::empty({plan.batch(), 3}, at::kLong),
                                 .cross = cross}),
               ValueError);
  try_encoder_inputs(subject);
  EXPECT_THROW(cache.update(good.keys, good.values, -1), ValueError);
  EXPECT_THROW(cache.update(good.keys, {}, last), ValueError);
  EXPECT_THROW(cache.update(good.keys, good.values.narrow(2, 0, 1), last), ValueError);
  EXPECT_THROW(cache.update(good.keys.narrow(2, 0, 0), good.values.narrow(2, 0, 0), last),
               ValueError);
  if (batch > 0) {
    const auto wider = [](const at::Tensor& t) { return at::cat({t, t}, 0); };
    const auto other = subject.setting.dtype == at::kFloat ? at::kHalf : at::kFloat;
    EXPECT_THROW(cache.begin_step({.tokens = 2, .batch = batch + 1}), ValueError);
    EXPECT_THROW(cache.update(wider(good.keys), wider(good.values), last), ValueError);
    EXPECT_THROW(cache.update(good.keys.to(other), good.values.to(other), last), ValueError);
    EXPECT_THROW(cache.update(good.keys, at::cat({good.values, good.values}, 3), last), ValueError);
  }
  EXPECT_EQ(difference(before, subject.digest()), "");
}

}  // namespace kvcache::testing
