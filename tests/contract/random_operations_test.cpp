// Random sequences of every operation; the contract is asserted after each of them.

#include <gtest/gtest.h>

#include "tests/contract/subject.h"
#include "tests/support/sweep.h"

namespace kvcache::testing {
namespace {

std::vector<std::int64_t> random_rows(Subject& subject, std::int64_t count) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i)
    rows.push_back(subject.random.below(subject.model.batch()));
  return rows;
}

// Goes on with a copy: what happens to the source later must not reach it.
void change_to_a_copy(Subject& subject) {
  Subject copy = subject.clone();
  const Digest before = copy.digest();
  take_step(subject, subject.random_plan());
  crop(subject, subject.random.below(3));
  subject.cache->reset();
  EXPECT_EQ(difference(before, copy.digest()), "");
  copy.random = subject.random;
  subject = std::move(copy);
}

// Goes on with one of two caches that share what they hold: what happens to the other does not
// reach it.
void change_to_a_fork(Subject& subject) {
  Subject other = subject.fork();
  EXPECT_EQ(difference(subject.digest(), other.digest()), "");
  if (subject.random.one_in(2)) std::swap(subject, other);
  const Digest before = subject.digest();
  for (std::int64_t left = subject.random.below(3); left > 0; --left) {
    take_step(other, other.random_plan());
    crop(other, other.random.below(4));
    if (other.model.batch() > 0) reorder(other, random_rows(other, other.model.batch()));
    if (other.model.batch() == 1) expand(other, 2);
  }
  EXPECT_EQ(difference(before, subject.digest()), "");
  subject.random = other.random;
}

// Forks, marks and parts of rows with tokens between, all of which live on until the end.
void share_again_and_again(Subject& subject) {
  std::vector<std::unique_ptr<Cache>> others;
  std::vector<Snapshot> marks;
  for (std::int64_t left = 1 + subject.random.below(3); left > 0; --left) {
    const std::int64_t way = subject.random.below(3);
    if (way == 0) others.push_back(subject.cache->fork());
    if (way == 1) marks.push_back(subject.cache->snapshot());
    if (way == 2) {
      for (auto& part : subject.cache->batch_split(1)) others.push_back(std::move(part));
    }
    take_step(subject, subject.random_plan());
  }
}

// Goes on and then back to a mark.
void go_back_to_a_mark(Subject& subject) {
  const Snapshot mark = subject.cache->snapshot();
  const CacheModel marked = subject.model;
  const Digest before = subject.digest();
  for (std::int64_t left = subject.random.below(3); left > 0; --left) {
    take_step(subject, subject.random_plan());
    crop(subject, subject.random.below(4));
  }
  if (subject.random.one_in(4)) reset(subject);
  subject.cache->restore(mark);
  subject.model = marked;
  // Layers and buffers of what held nothing may have been made since.
  if (marked.batch() > 0 && (marked.encoder.held() || !subject.encoder_layers())) {
    EXPECT_EQ(difference(before, subject.digest()), "");
  }
}

std::string operate(Subject& subject) {
  Random& random = subject.random;
  const std::int64_t batch = subject.model.batch();
  switch (random.below(24)) {
    case 0:
    case 1:
      take_round(subject, subject.random_plan());
      return "round of updates";
    case 2:
    case 3:
      crop(subject, random.one_in(3) ? subject.model.seen() : random.below(7));
      return "crop";
    case 4:
      reset(subject);
      return "reset";
    case 5:
      if (subject.setting.recorded) {
        std::optional<std::int64_t> most;
        if (!subject.setting.kind.fixed && random.one_in(2)) most = 1 + random.below(5);
        record(subject, most);
      }
      return "record";
    case 6:
      if (batch > 0) select(subject, random_rows(subject, 1 + random.below(3)));
      return "select";
    case 7:
      if (batch > 0) reorder(subject, random_rows(subject, batch));
      return "reorder";
    case 8:
      repeat(subject, batch < 3 ? 1 + random.below(2) : 1);
      return "repeat";
    case 9:
      try_what_is_refused(subject);
      return "refusals";
    case 10:
      reserve(subject, random.below(subject.model.capacity().value_or(63) + 1));
      return "reserve";
    case 11:
      change_to_a_copy(subject);
      return "copy";
    case 12:
    case 13:
      change_to_a_fork(subject);
      return "fork";
    case 14:
      if (batch <= 1) expand(subject, 1 + random.below(3));
      return "expand";
    case 15:
    case 16:
      share_again_and_again(subject);
      return "forks";
    case 17:
      go_back_to_a_mark(subject);
      return "mark";
    case 18:
      if (batch > 0 && (subject.model.encoder.held() || !subject.encoder_layers())) {
        split_and_join(subject, 1 + random.below(batch));
      }
      return "split";
    case 19:
      if (subject.cache->history().batch() > 0) leave_and_come_back(subject);
      return "rows that leave";
    default:
      take_step(subject, subject.random_plan());
      return "step";
  }
}

class Contract : public ::testing::TestWithParam<Setting> {};

TEST_P(Contract, HoldsAfterEveryOperation) {
  const std::int64_t sequences = sweep_count(3, 60);
  for (std::int64_t seed = 0; seed < sequences; ++seed) {
    Subject subject(GetParam(), std::uint64_t(seed));
    std::string done;
    for (int i = 0; i < 16; ++i) {
      const std::string operation = operate(subject);
      done += (done.empty() ? "" : ", ") + operation;
      SCOPED_TRACE(c10::str("seed ", seed, ": ", done));
      expect_contract(subject);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Contract, ::testing::ValuesIn(settings()),
                         [](const auto& setting) { return name_of(setting.param); });

}  // namespace
}  // namespace kvcache::testing
