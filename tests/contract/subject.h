// A cache beside the model of what it should hold, and the operations and checks that go to both.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/cache.h"
#include "tests/contract/digest.h"
#include "tests/contract/model.h"
#include "tests/support/failing_memory.h"

namespace kvcache::testing {

// One step's tokens, and how it is told of them.
struct StepPlan {
  enum class Mask { none, own, whole };

  TokenRows added;
  bool with_ids = true;
  Mask mask = Mask::none;
  TokenRows past = {};  // the rows before, with other padding; where the mask is whole
  std::optional<TokenRows> encoder = {};  // the encoder's input, where it is passed
  std::vector<std::int64_t> stamps = {};  // of each row; none: they stay

  std::int64_t tokens() const { return std::int64_t(added[0].size()); }
  std::int64_t batch() const { return std::int64_t(added.size()); }
};

CrossInput cross_input(const TokenRows& rows);

struct Subject {
  Subject(const Setting& setting, std::uint64_t seed);

  Subject clone() const;
  Subject fork() const;

  StepPlan plan(std::int64_t tokens);
  StepPlan random_plan();
  StepInput input(const StepPlan& plan) const;
  KeyValue states(const StepPlan& plan, std::int64_t layer) const;
  Digest digest() const { return digest_of(*cache); }

  LayeredCache& layers() const { return layers_of(*cache); }
  LayeredCache* encoder_layers() const { return encoder_layers_of(*cache); }

  // Input of an encoder for `batch` rows of the decoder.
  TokenRows random_encoder_input(std::int64_t batch);
  // Whether a step takes in the encoder's keys, which are not held yet.
  bool computes_encoder(const StepPlan& plan) const;

  Setting setting;
  std::shared_ptr<FailingMemory> memory;
  std::unique_ptr<Cache> cache;
  CacheModel model;
  Random random;

 private:
  Subject with(std::unique_ptr<Cache> copy) const;
  TokenRows new_tokens(std::int64_t batch, std::int64_t tokens);
  std::optional<TokenRows> next_encoder_input(std::int64_t batch);

  std::int64_t next_content_ = 0;
};

// Opens a step and stamps its rows.
Step begin_step(const Subject& subject, const StepPlan& plan);

// Operations; what they return is checked, and so are refusals, of steps without room among them.
void take_step(Subject& subject, const StepPlan& plan);
// update() layer by layer, in any order; a step where there are layers that update() cannot feed.
void take_round(Subject& subject, const StepPlan& plan);
void crop(Subject& subject, std::int64_t tokens);
void select(Subject& subject, const std::vector<std::int64_t>& rows);
void reorder(Subject& subject, const std::vector<std::int64_t>& rows);
void repeat(Subject& subject, std::int64_t repeats);
void expand(Subject& subject, std::int64_t rows);
// Goes on with a cache of the parts that this one's rows were split into, of which the first may
// have become shorter.
void split_and_join(Subject& subject, std::int64_t rows);

// Its rows leave, and come back one by one, the first of them perhaps shorter.
void leave_and_come_back(Subject& subject);
void reserve(Subject& subject, std::int64_t tokens);
void record(Subject& subject, std::optional<std::int64_t> max_tokens);
void reset(Subject& subject);
void try_what_is_refused(Subject& subject);

// Makes a call that concerns the decoder alone: the encoder's keys stay where and as they are.
void leaving_encoder(Subject& subject, const std::function<void()>& call);

// What a layer is given in a step, call by call: its keys or a look at its donor's, each of its
// states, then the encoder's keys. What the cache hands back is checked, and the tensors that were
// given are then written over, but for a donor's: what later layers read may alias them.
std::vector<std::function<void(Step&)>> layer_calls(const Subject& subject, const StepPlan& plan,
                                                    std::int64_t layer);
void feed_layer(Step& step, const Subject& subject, const StepPlan& plan, std::int64_t layer);

// Checks that a layer's view of a step is the model's, and appends to the model once all layers had
// their turn.
void expect_view(const View& view, const Subject& subject, const StepPlan& plan,
                 std::int64_t layer);
void expect_joined(const KeyValue& joined, const Subject& subject, const StepPlan& plan,
                   std::int64_t layer);
void note_step(Subject& subject, const StepPlan& plan);

// Invariants 1 to 4, 7 and 9 of a cache between operations. No other buffer of its memory is alive.
void expect_contract(Subject& subject);

}  // namespace kvcache::testing
