#include "tests/contract/subject.h"

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

struct Place {
  const void* address;
  bool kept;  // the cache may write there, or all rows are one: reorder leaves it where it is
  std::int64_t version;

  bool operator==(const Place&) const = default;
};

std::vector<Place> places(LayeredCache* cache) {
  struct Collect final : Visitor {
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      if (info.role == Role::layout) return;
      const bool kept = info.writable || !info.batch_dim;
      found.push_back(tensor.defined()
                          ? Place{tensor.const_data_ptr(), kept, std::int64_t(tensor._version())}
                          : Place{nullptr, kept, 0});
    }
    void count(std::string_view, std::int64_t&) override {}
    std::vector<Place> found;
  };
  Collect collect;
  if (cache) cache->visit(collect);
  return collect.found;
}

void expect_kept(const std::vector<Place>& before, const std::vector<Place>& after) {
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(after[i].kept);
    if (before[i].kept) {
      EXPECT_EQ(before[i].address, after[i].address);
    }
  }
}

bool lengths_differ(const LayeredCache& cache) {
  for (std::int64_t i = 1; i < cache.layer_count(); ++i) {
    if (cache.get_seq_length(i) != cache.get_seq_length(0)) return true;
  }
  return false;
}

// In the middle of a round of updates every whole-cache operation refuses.
void expect_unfinished_round_refuses(Subject& subject) {
  if (!lengths_differ(subject.layers())) return;
  Cache& cache = *subject.cache;
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

bool Subject::computes_encoder(const StepPlan& plan) const {
  return plan.encoder && !model.encoder.holds(*plan.encoder, plan.batch());
}

Subject Subject::clone() const { return with(cache->clone()); }
Subject Subject::fork() const { return with(cache->fork()); }

Subject Subject::with(std::unique_ptr<Cache> made) const {
  Subject copy(setting, 0);
  copy.memory = memory;
  copy.cache = std::move(made);
  copy.model = model;
  copy.random = random;
  copy.next_content_ = next_content_;
  return copy;
}

namespace {

// Int64 [batch * tokens].
at::Tensor positions_of(const Subject& subject, const StepPlan& plan) {
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < plan.batch(); ++row) {
    const auto at = std::size_t(row);
    const auto& past = plan.mask == StepPlan::Mask::whole ? plan.past[at] : std::vector<Token>{};
    std::int64_t next =
        plan.mask == StepPlan::Mask::whole
            ? std::count_if(past.begin(), past.end(), [](auto& t) { return t.real; })
            : subject.model.real_tokens(row);
    for (const Token& token : plan.added[at]) positions.push_back(token.real ? next++ : 0);
  }
  return index_tensor(positions);
}

// A step or call that finds no room changes nothing.
template <typename Call>
void expect_no_room(Subject& subject, const Call& call) {
  const Digest before = subject.digest();
  EXPECT_THROW(call(), ValueError);
  EXPECT_EQ(difference(before, subject.digest()), "");
}

}  // namespace

void leaving_encoder(Subject& subject, const std::function<void()>& call) {
  const std::vector<Place> before = places(subject.encoder_layers());
  call();
  EXPECT_TRUE(places(subject.encoder_layers()) == before);
}

void note_step(Subject& subject, const StepPlan& plan) {
  if (subject.computes_encoder(plan)) subject.model.encoder.rows = *plan.encoder;
  if (plan.mask == StepPlan::Mask::whole) subject.model.rows = plan.past;
  subject.model.append(plan.added, plan.stamps);
}

Step begin_step(const Subject& subject, const StepPlan& plan) {
  Step step = subject.cache->begin_step(subject.input(plan));
  if (!plan.stamps.empty()) step.stamp(plan.stamps);
  return step;
}

void take_step(Subject& subject, const StepPlan& plan) {
  const CacheModel& model = subject.model;
  if (!model.fits(plan.tokens())) {
    expect_no_room(subject, [&] { subject.cache->begin_step(subject.input(plan)); });
    return;
  }
  const std::vector<Place> encoder = places(subject.encoder_layers());
  Step step = begin_step(subject, plan);
  EXPECT_EQ(step.seen(), model.seen());
  EXPECT_EQ(step.cross() != nullptr, subject.computes_encoder(plan));
  EXPECT_TRUE(at::equal(step.positions().flatten(), positions_of(subject, plan)));
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    EXPECT_EQ(step.visible(layer), model.visible(layer, plan.tokens()));
    EXPECT_EQ(step.query_offset(layer), model.seen());
    feed_layer(step, subject, plan, layer);
    EXPECT_EQ(step.visible(layer), model.visible(layer, plan.tokens()));
  }
  step.commit();
  if (!subject.computes_encoder(plan)) {
    EXPECT_TRUE(places(subject.encoder_layers()) == encoder);
  }
  note_step(subject, plan);
}

void take_round(Subject& subject, const StepPlan& plan) {
  if (!subject.model.all_have_keys_alone()) return take_step(subject, plan);
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
  Cache& cache = *subject.cache;
  EXPECT_EQ(cache.can_crop(tokens), subject.model.can_crop(tokens));
  if (subject.model.can_crop(tokens)) {
    leaving_encoder(subject, [&] { cache.crop(-tokens); });
    subject.model.crop(tokens);
    return;
  }
  const Digest before = subject.digest();
  EXPECT_THROW(cache.crop(-tokens), RuntimeError);
  EXPECT_EQ(difference(before, subject.digest()), "");
}

namespace {

// Rows `rows` of as many change where they lie. So do the encoder's, unless none does or there are
// then more or fewer.
template <typename Call>
void change_rows_in_place(Subject& subject, const std::vector<std::int64_t>& rows,
                          const Call& call) {
  EncoderModel& encoder = subject.model.encoder;
  std::vector<std::int64_t> unchanged(std::size_t(encoder.batch()));
  std::iota(unchanged.begin(), unchanged.end(), 0);
  const bool stays =
      !encoder.held() || encoder.chosen(rows, std::int64_t(rows.size())) == unchanged;
  const std::vector<Place> own = places(&subject.layers());
  const std::vector<Place> encoded = places(subject.encoder_layers());
  stays ? leaving_encoder(subject, call) : call();
  subject.model.select(rows);
  expect_kept(own, places(&subject.layers()));
  if (!stays && encoder.batch() == std::int64_t(unchanged.size())) {
    expect_kept(encoded, places(subject.encoder_layers()));
  }
}

}  // namespace

void select(Subject& subject, const std::vector<std::int64_t>& rows) {
  const auto call = [&] { subject.cache->batch_select_indices(index_tensor(rows)); };
  if (subject.setting.kind.fixed && std::int64_t(rows.size()) == subject.model.batch()) {
    change_rows_in_place(subject, rows, call);
    return;
  }
  call();
  subject.model.select(rows);
}

void reorder(Subject& subject, const std::vector<std::int64_t>& rows) {
  change_rows_in_place(subject, rows, [&] { subject.cache->reorder_cache(index_tensor(rows)); });
}

void expand(Subject& subject, std::int64_t rows) {
  leaving_encoder(subject, [&] { subject.cache->expand(rows); });
  subject.model.expand(rows);
}

void repeat(Subject& subject, std::int64_t repeats) {
  leaving_encoder(subject, [&] { subject.cache->batch_repeat_interleave(repeats); });
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < subject.model.batch(); ++row) {
    rows.insert(rows.end(), std::size_t(repeats), row);
  }
  subject.model.select(rows);
}

namespace {

// Some that can be taken back, and not all; often 0.
std::int64_t tokens_to_take_back(Subject& subject) {
  if (subject.setting.kind.packed) return 0;
  const std::int64_t tokens = subject.random.below(5);
  return tokens < subject.model.seen() && subject.model.can_crop(tokens) ? tokens : 0;
}

}  // namespace

void split_and_join(Subject& subject, std::int64_t rows) {
  std::vector<std::unique_ptr<Cache>> parts = subject.cache->batch_split(rows);
  std::vector<CacheModel> models = subject.model.split(rows);
  ASSERT_EQ(parts.size(), models.size());
  const std::int64_t taken_back = tokens_to_take_back(subject);
  for (std::size_t i = 0; taken_back > 0 && i < parts.size(); ++i) {
    const std::int64_t tokens = i == 0 ? taken_back : 0;  // what was recorded goes in all of them
    parts[i]->crop(-tokens);
    models[i].crop(tokens);
  }
  std::vector<Cache*> others;
  for (std::size_t i = 1; i < parts.size(); ++i) others.push_back(parts[i].get());
  subject.cache = parts[0]->concatenate(others);
  subject.model.join(models);
  subject.model.join_encoders(models);
}

void leave_and_come_back(Subject& subject) {
  const std::int64_t taken_back = tokens_to_take_back(subject);
  const std::int64_t batch = subject.cache->batch_size();
  const std::unique_ptr<Cache> moved = subject.cache->move_out();
  EXPECT_EQ(subject.cache->get_seq_length(), 0);
  std::vector<std::unique_ptr<Cache>> parts;
  std::vector<Cache*> pointers;
  std::vector<std::int64_t> places;
  std::vector<CacheModel> models = subject.model.split(1);
  for (std::int64_t row = batch - 1; row >= 0; --row) {
    const std::int64_t tokens = row == 0 ? taken_back : 0;
    parts.push_back(moved->copy_rows(index_tensor({row})));
    parts.back()->crop(-tokens);
    models[std::size_t(row)].crop(tokens);
    pointers.push_back(parts.back().get());
    places.push_back(row);
  }
  subject.cache->put_together(pointers, index_tensor(places));
  for (const auto& part : parts) EXPECT_EQ(part->get_seq_length(), 0);
  subject.model.join(models);
}

void reserve(Subject& subject, std::int64_t tokens) {
  leaving_encoder(subject, [&] { subject.cache->reserve(tokens); });
}

void record(Subject& subject, std::optional<std::int64_t> max_tokens) {
  leaving_encoder(subject, [&] { subject.cache->activate_past_recording(max_tokens); });
  subject.model.record(max_tokens);
}

void reset(Subject& subject) {
  subject.cache->reset();
  subject.model.reset();
}

}  // namespace kvcache::testing
