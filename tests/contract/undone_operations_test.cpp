// Operations outside steps that are refused memory, at every allocation, leave no trace.

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/serialization.h"
#include "tests/contract/undone.h"
#include "tests/support/temp_folder.h"

namespace kvcache::testing {
namespace {

struct Operation {
  std::string name;
  std::function<void(Cache&)> run;
};

using Operations = std::vector<Operation>;

// That need nothing beside the cache.
Operations own_operations(const Subject& start, const StepPlan& plan) {
  Operations result = {{"reserve", [](Cache& c) { c.reserve(c.capacity().value_or(100)); }},
                       {"clone", [](Cache& c) { (void)c.clone(); }},
                       {"fork", [](Cache& c) { (void)c.fork(); }},
                       {"snapshot", [](Cache& c) { (void)c.snapshot(); }},
                       {"move_out", [](Cache& c) { (void)c.move_out(); }},
                       {"repeat", [](Cache& c) { c.batch_repeat_interleave(2); }}};
  if (start.model.all_have_keys_alone()) {
    result.push_back({"update", [&](Cache& cache) {
                        const KeyValue states = start.states(plan, 0);
                        cache.update(states.keys, states.values, 0);
                      }});
  }
  const std::int64_t batch = start.model.batch();
  if (batch == 1) result.push_back({"expand", [](Cache& c) { c.expand(3); }});
  if (batch == 0) return result;
  const at::Tensor reversed = at::arange(batch - 1, -1, -1, at::kLong);
  result.push_back({"reorder", [=](Cache& c) { c.reorder_cache(reversed); }});
  result.push_back({"select", [=](Cache& c) { c.batch_select_indices(reversed); }});
  result.push_back({"copy rows", [=](Cache& c) { (void)c.copy_rows(reversed); }});
  result.push_back({"split", [](Cache& c) { (void)c.batch_split(1); }});
  return result;
}

// Other caches of its kind, and what they say: one that holds the same, and one a step further with
// its mark and its file.
class Others {
 public:
  Others(const Subject& start, const StepPlan& plan)
      : twin_(start.clone()), later_(start.clone()), path_(folder_.path() / "cache.safetensors") {
    take_step(later_, plan);
    save_cache(*later_.cache, path_);
    mark_.emplace(later_.cache->snapshot());
    twin_before_ = twin_.digest();
    later_before_ = later_.digest();
    file_.dtype = start.setting.dtype;
    file_.devices.clear();
    for (std::int64_t i = 0; i < start.model.layers(); ++i) {
      file_.devices.push_back(start.setting.device_of(i));
    }
  }

  Operations operations() const {
    Operations result = {{"restore", [this](Cache& c) { c.restore(*mark_); }},
                         {"load", [this](Cache& c) { load_cache(c, path_, file_); }}};
    const bool has_rows = twin_.model.batch() > 0;
    if (has_rows && (twin_.model.encoder.held() || twin_.encoder_layers() == nullptr)) {
      result.push_back(
          {"concatenate", [this](Cache& c) { (void)c.concatenate({twin_.cache.get()}); }});
    }
    return result;
  }

  void expect_unchanged() const {
    EXPECT_EQ(difference(twin_before_, twin_.digest()), "");
    EXPECT_EQ(difference(later_before_, later_.digest()), "");
  }

 private:
  Subject twin_, later_;
  TempFolder folder_;
  std::filesystem::path path_;
  std::optional<Snapshot> mark_;
  CacheFileOptions file_;
  Digest twin_before_, later_before_;
};

void refuse_in_operations(const Subject& start, const StepPlan& plan, const StepPlan& next) {
  const Others others(start, plan);
  Operations operations = own_operations(start, plan);
  for (Operation& operation : others.operations()) operations.push_back(std::move(operation));
  for (const Operation& operation : operations) {
    SCOPED_TRACE(operation.name);
    for (std::int64_t allowed = 0;; ++allowed) {
      Subject subject = start.clone();
      subject.memory->fail_after(allowed);
      try {
        operation.run(*subject.cache);
        start.memory->fail_after(std::nullopt);
        break;
      } catch (const c10::OutOfMemoryError&) {
        expect_undone(subject, start, next);
      }
    }
  }
  others.expect_unchanged();
}

// Giving memory back never fails: where none is left for a smaller buffer the present one stays.
void refuse_in_crop(const Subject& start, const StepPlan&, const StepPlan& next) {
  for (const std::int64_t tokens : {0, 1, 2, 5}) {
    for (std::int64_t allowed = 0; start.model.can_crop(tokens); ++allowed) {
      Subject subject = start.clone(), control = start.clone();
      crop(control, tokens);
      start.memory->fail_after(allowed);
      subject.cache->crop(-tokens);
      const bool all_allowed = start.memory->refuses();
      start.memory->fail_after(std::nullopt);
      subject.model.crop(tokens);
      ASSERT_EQ(difference(control.digest(), subject.digest()), "") << "crop of " << tokens;
      StepPlan step = next;  // planned for what was seen before the crop
      if (step.mask == StepPlan::Mask::whole) step.mask = StepPlan::Mask::own;
      take_step(control, step);
      take_step(subject, step);
      EXPECT_EQ(difference(control.digest(), subject.digest()), "") << "crop of " << tokens;
      if (all_allowed) break;
    }
  }
}

// Whether put_together() of some rows and of all came to an end with the allocation after `allowed`
// ones refused. If not, neither the cache nor the parts hold tokens, but an encoder's output stays.
bool put_together(Subject& subject, std::int64_t allowed) {
  const std::int64_t batch = subject.model.batch();
  const std::unique_ptr<Cache> moved = subject.cache->move_out();
  const std::unique_ptr<Cache> first = moved->copy_rows(at::arange(1, at::kLong));
  at::Tensor rows = at::arange(1, batch + 1, at::kLong);
  rows[0] = 0;
  const EncoderModel encoder = subject.model.encoder;
  subject.memory->fail_after(allowed);
  try {
    subject.cache->put_together({first.get(), moved.get()}, rows);
    subject.memory->fail_after(std::nullopt);
    subject.model.crop(0);
    subject.model.join({CacheModel(subject.model)});
    return true;
  } catch (const c10::OutOfMemoryError&) {
    subject.memory->fail_after(std::nullopt);
  }
  subject.model.reset();
  subject.model.encoder = encoder;
  subject.setting.batch = batch;
  for (Cache* cache : {subject.cache.get(), first.get(), moved.get()}) {
    EXPECT_EQ(layers_of(*cache).batch_size(), 0);
    EXPECT_EQ(cache->get_seq_length(), 0);
    EXPECT_EQ(cache->history().seen(), 0);
  }
  return false;
}

void refuse_in_put_together(const Subject& start, const StepPlan&, const StepPlan& next) {
  if (start.model.batch() == 0) return;
  for (std::int64_t allowed = 0;; ++allowed) {
    Subject subject = start.clone();
    const bool done = put_together(subject, allowed);
    take_step(subject, done ? next : subject.plan(3));
    if (done) return;
  }
}

class UndoneOperations : public UndoneTest {};

TEST_P(UndoneOperations, RefusedMemory) { sweep(2, refuse_in_operations); }
TEST_P(UndoneOperations, RefusedMemoryInCrop) { sweep(2, refuse_in_crop); }
TEST_P(UndoneOperations, RefusedMemoryInPutTogether) { sweep(2, refuse_in_put_together); }

INSTANTIATE_TEST_SUITE_P(Kinds, UndoneOperations, ::testing::ValuesIn(settings()),
                         [](const auto& setting) { return name_of(setting.param); });

}  // namespace
}  // namespace kvcache::testing
