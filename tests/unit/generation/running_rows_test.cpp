// Rows that end before others: the cache holds each of them as if it had run alone, for the next
// turn (F30).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "tests/support/ended_rows.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using Numbers = std::vector<std::int64_t>;

class RowsThatEnded : public ::testing::TestWithParam<ModelAndCache> {
 protected:
  const CausalLM& model() const { return model_named(GetParam().model); }
  std::unique_ptr<Cache> new_cache() const { return cache_for(model(), GetParam().cache); }

  // The first turn: rows end after kEnds tokens.
  Output first_turn(Cache* cache) const {
    const Padded batch = padded(kPrompts);
    return generate(model(),
                    {.input_ids = batch.ids,
                     .attention_mask = batch.mask,
                     .stopping_criteria = {std::make_shared<EndAfter>(kEnds)}},
                    {.max_new_tokens = 6, .pad_token_id = kPad}, cache);
  }

  // The rows of the first turn, prompts and what follows them.
  Rows texts() const {
    Rows rows = kPrompts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Numbers made = alone(model(), kPrompts[i], kEnds[i]);
      rows[i].insert(rows[i].end(), made.begin(), made.end());
    }
    return rows;
  }

  static Rows with_more(Rows rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].insert(rows[i].end(), kMore[i].begin(), kMore[i].end());
    }
    return rows;
  }

  // What follows in the next turn is what each row gets alone.
  void expect_next(const at::Tensor& made) const {
    const Rows rows = with_more(texts());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(numbers_of(made[static_cast<std::int64_t>(i)]), alone(model(), rows[i], 5))
          << "row " << i;
    }
  }
};

TEST_P(RowsThatEnded, F30TheCacheHoldsEachRowAsIfItHadRunAlone) {
  const auto cache = new_cache();
  const Output output = first_turn(cache.get());
  const Rows rows = texts();
  ASSERT_EQ(cache->batch_size(), 3);
  EXPECT_EQ(cache->get_seq_length(), 9 + 5);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i);
    Numbers right = rows[at];
    Numbers sequence(9 - kPrompts[at].size(), 0);
    sequence.insert(sequence.end(), right.begin(), right.end());
    sequence.resize(15, kPad);
    EXPECT_EQ(numbers_of(output.sequences[i]), sequence) << "row " << i;
    right.pop_back();
    EXPECT_EQ(held_tokens(*cache, i), right) << "row " << i;
    const auto own = static_cast<std::int64_t>(right.size());
    EXPECT_TRUE(cache->history().valid()[i].narrow(0, 14 - own, own).all().item<bool>())
        << "row " << i << " is not padded on the left";
  }
}

TEST_P(RowsThatEnded, F30TheNextTurnAsAContinuation) {
  const auto cache = new_cache();
  first_turn(cache.get());
  Rows turn;
  for (const Numbers& row : texts()) turn.push_back({row.back()});
  const Output next =
      generate(model(), {.input_ids = ids_tensor(with_more(turn)), .continuation = true},
               {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
  EXPECT_EQ(next.timings.prefill_tokens, 3 * 3);
  expect_next(next.sequences.narrow(1, 3, 5));
}

// However far they are padded, they need only new tokens.
TEST_P(RowsThatEnded, F30TheNextTurnAsWholeTextsPaddedOnTheLeft) {
  for (const std::size_t columns : {17U, 13U}) {
    const auto cache = new_cache();
    first_turn(cache.get());
    const Padded turn = padded(with_more(texts()), columns);
    const Output next = generate(model(), {.input_ids = turn.ids, .attention_mask = turn.mask},
                                 {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
    EXPECT_EQ(next.timings.prefill_tokens, 3 * 3);
    EXPECT_TRUE(next.sequences.narrow(1, 0, turn.ids.size(1)).equal(turn.ids));
    expect_next(next.sequences.narrow(1, turn.ids.size(1), 5));
  }
}

// What follows may have different lengths, where the layers leave padding out.
TEST_P(RowsThatEnded, F30TheNextTurnOfDifferentLengths) {
  const auto cache = new_cache();
  first_turn(cache.get());
  Rows rows = texts();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].insert(rows[i].end(), i + 1, 30 + static_cast<std::int64_t>(i));
  }
  const Padded turn = padded(rows);
  const Output next =
      generate(model(), {.input_ids = turn.ids, .attention_mask = turn.mask},
               {.max_length = turn.ids.size(1) + 5, .pad_token_id = kPad}, cache.get());
  const bool full = GetParam().model == std::string("llama");
  EXPECT_EQ(next.timings.prefill_tokens, full ? 3 * 4 : turn.ids.numel());
  ASSERT_EQ(next.sequences.size(1), turn.ids.size(1) + 5);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(
        numbers_of(next.sequences[static_cast<std::int64_t>(i)].narrow(0, turn.ids.size(1), 5)),
        alone(model(), rows[i], 5))
        << "row " << i;
  }
}

// Without room for the columns of the cache beside what is new, the text is computed again.
TEST(RowsThatEndedInAFixedCache, F30TheNextTurnNeedsNoMoreRoomThanItSays) {
  const CausalLM& model = model_named("llama");
  StaticCache cache(model.config(), {.max_cache_len = 17});
  const Padded batch = padded(kPrompts);
  generate(model,
           {.input_ids = batch.ids,
            .attention_mask = batch.mask,
            .stopping_criteria = {std::make_shared<EndAfter>(kEnds)}},
           {.max_new_tokens = 6, .pad_token_id = kPad}, &cache);
  Rows rows = kPrompts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Numbers made = alone(model, kPrompts[i], kEnds[i]);
    rows[i].insert(rows[i].end(), made.begin(), made.end());
    rows[i].push_back(30);
  }
  const Padded turn = padded(rows);  // 12 columns, in the cache's 16
  const Output next = generate(model, {.input_ids = turn.ids, .attention_mask = turn.mask},
                               {.max_new_tokens = 5, .pad_token_id = kPad}, &cache);
  EXPECT_EQ(next.timings.prefill_tokens, turn.ids.numel());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(
        numbers_of(next.sequences[static_cast<std::int64_t>(i)].narrow(0, turn.ids.size(1), 5)),
        alone(model, rows[i], 5));
  }
}

// As users of Transformers do it: the sequences as they came back, and a mask by hand.
TEST_P(RowsThatEnded, F30TheNextTurnAsSequencesWithTheirPads) {
  const auto cache = new_cache();
  const at::Tensor sequences = first_turn(cache.get()).sequences;
  const at::Tensor ids = at::cat({sequences, ids_tensor(kMore)}, 1);
  at::Tensor mask = at::ones_like(ids);
  mask.narrow(1, 0, 9).copy_(padded(kPrompts).mask);
  mask[0].narrow(0, 9 + 2, 4).fill_(0);
  mask[2].narrow(0, 9 + 4, 2).fill_(0);
  const Output next = generate(model(), {.input_ids = ids, .attention_mask = mask},
                               {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
  EXPECT_EQ(next.timings.prefill_tokens, 3 * 3);
  EXPECT_TRUE(next.sequences.narrow(1, 0, 17).equal(ids));
  expect_next(next.sequences.narrow(1, 17, 5));
}

TEST_P(RowsThatEnded, AFailureLeavesEveryRowsStepsInTheCache) {
  for (const int failing : {2, 3, 5, 6}) {
    SCOPED_TRACE(failing);
    const auto cache = new_cache();
    int step = 0;
    CallbackStreamer streamer([&](const at::Tensor&) {
      if (++step == failing) throw std::runtime_error("enough");
    });
    const Padded batch = padded(kPrompts);
    const Inputs inputs{.input_ids = batch.ids,
                        .attention_mask = batch.mask,
                        .stopping_criteria = {std::make_shared<EndAfter>(kEnds)},
                        .streamer = &streamer};
    EXPECT_THROW(
        generate(model(), inputs, {.max_new_tokens = 6, .pad_token_id = kPad}, cache.get()),
        std::runtime_error);
    const Rows rows = texts();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t made = std::min<std::int64_t>(kEnds[i], failing);
      const Numbers right(
          rows[i].begin(),
          rows[i].begin() + static_cast<std::ptrdiff_t>(kPrompts[i].size()) + made - 1);
      EXPECT_EQ(held_tokens(*cache, static_cast<std::int64_t>(i)), right) << "row " << i;
    }
    const Padded turn = padded(with_more(rows));
    const Output next = generate(model(), {.input_ids = turn.ids, .attention_mask = turn.mask},
                                 {.max_new_tokens = 5, .pad_token_id = kPad}, cache.get());
    expect_next(next.sequences.narrow(1, turn.ids.size(1), 5));
  }
}

std::vector<ModelAndCache> cases() {
  std::vector<ModelAndCache> all;
  for (const char* model : {"llama", "mistral", "qwen2", "gemma3_text", "llama4_text", "chunked",
                            "mixed", "mamba", "mamba2", "jamba", "lfm2", "qwen3_next"}) {
    all.push_back({model, "Dynamic"});
    all.push_back({model, "Static"});
  }
  for (const char* model : {"llama", "mistral", "mixed"}) all.push_back({model, "Early"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, RowsThatEnded, ::testing::ValuesIn(cases()),
                         [](const auto& suite) {
                           return std::string(suite.param.model) + suite.param.cache;
                         });

}  // namespace
}  // namespace kvcache::testing
