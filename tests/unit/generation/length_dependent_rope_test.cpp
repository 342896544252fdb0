// F74: rope whose frequencies depend on a text's length. Cached keys hold for one set of
// frequencies: a forward pass that would mix two is refused, and generate() starts the text anew.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/core/errors.h"
#include "kvcache/generation/runner.h"
#include "tests/support/ended_rows.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

constexpr std::int64_t kHoldsTo = 8;  // tokens up to which frequencies stay the same

std::unique_ptr<CausalLM> model_with(const std::string& type) {
  ModelConfig config = tiny_config("full");
  config.rope = {.type = type,
                 .factor = 4,
                 .original_max_position_embeddings = kHoldsTo,
                 .short_factor = {1, 1, 1, 1},
                 .long_factor = {1.5, 2, 4, 8}};
  const LoadOptions options{.dtype = at::kFloat};
  return std::make_unique<DecoderModel>(config, StateDict(tiny_weights(config), options), options,
                                        DecoderStyle{});
}

const at::Tensor kText = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8, 12, 13, 14}});

at::Tensor first(std::int64_t tokens) { return kText.narrow(1, 0, tokens); }

at::Tensor last_logits(const CausalLM& model, const at::Tensor& ids, Cache* cache = nullptr,
                       const std::optional<at::Tensor>& mask = {}) {
  return model.forward({.input_ids = ids, .attention_mask = mask, .logits_to_keep = 1}, cache)
      .select(1, 0);
}

class LengthDependentRope : public ::testing::TestWithParam<const char*> {
 protected:
  void expect_refused(const at::Tensor& ids, Cache& cache) {
    const std::int64_t before = cache.get_seq_length();
    EXPECT_TRUE(model_->needs_whole_text({.input_ids = ids}, cache));
    try {
      model_->forward({.input_ids = ids}, &cache);
      ADD_FAILURE() << "not refused";
    } catch (const RuntimeError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("pass the whole text at once"));
    }
    EXPECT_EQ(cache.get_seq_length(), before);
    EXPECT_EQ(cache.history().seen(), before);
  }

  std::unique_ptr<CausalLM> model_ = model_with(GetParam());
};

TEST_P(LengthDependentRope, F74_FrequenciesDiffer) {
  const auto plain = model_with("default");
  EXPECT_LE(difference(last_logits(*model_, first(8)), last_logits(*plain, first(8))), 1e-5);
  EXPECT_GT(difference(last_logits(*model_, first(9)), last_logits(*plain, first(9))), 1e-2);
}

TEST_P(LengthDependentRope, F74_ABareForwardThatCrossesIsRefused) {
  DynamicCache cache(model_->config());
  last_logits(*model_, first(5), &cache);
  EXPECT_FALSE(model_->needs_whole_text({.input_ids = first(3)}, cache));
  EXPECT_LE(difference(last_logits(*model_, kText.narrow(1, 5, 3), &cache),
                       last_logits(*model_, first(8))),
            1e-4);
  expect_refused(kText.narrow(1, 8, 1), cache);
  cache.reset();
  EXPECT_LE(difference(last_logits(*model_, first(9), &cache), last_logits(*model_, first(9))),
            1e-4);
}

TEST_P(LengthDependentRope, F74_KeysOfALongTextDoNotFitAShortOne) {
  DynamicCache cache(model_->config());
  last_logits(*model_, first(10), &cache);
  const std::unique_ptr<Cache> copy = cache.clone();
  for (Cache* each : {static_cast<Cache*>(&cache), copy.get()}) {
    each->crop(-6);
    expect_refused(kText.narrow(1, 4, 1), *each);
    each->crop(-4);  // nothing is left that could be wrong
    EXPECT_LE(difference(last_logits(*model_, first(4), each), last_logits(*model_, first(4))),
              1e-4);
  }
}

// A row is what it would be alone, whatever its neighbours' lengths.
TEST_P(LengthDependentRope, F74_EachRowGoesByItsOwnLength) {
  const at::Tensor short_text = ids_tensor({{12, 13, 14, 5, 9}});
  const at::Tensor ids = at::cat({first(11), at::constant_pad_nd(short_text, {6, 0}, 0)});
  at::Tensor mask = at::ones_like(ids);
  mask[1].narrow(0, 0, 6).fill_(0);
  DynamicCache cache(model_->config());
  const at::Tensor logits = last_logits(*model_, ids, &cache, mask);
  EXPECT_LE(difference(logits.narrow(0, 0, 1), last_logits(*model_, first(11))), 1e-4);
  EXPECT_LE(difference(logits.narrow(0, 1, 1), last_logits(*model_, short_text)), 1e-4);
  // The rows keep what they are when they change places.
  cache.reorder_cache(at::tensor({1, 0}, at::kLong));
  const at::Tensor next = ids_tensor({{3}, {4}});
  if (!model_->needs_whole_text({.input_ids = next}, cache)) {
    const at::Tensor both = last_logits(*model_, next, &cache);
    EXPECT_LE(difference(both.narrow(0, 0, 1),
                         last_logits(*model_, at::cat({short_text, next.narrow(0, 0, 1)}, 1))),
              1e-4);
    EXPECT_LE(difference(both.narrow(0, 1, 1),
                         last_logits(*model_, at::cat({first(11), next.narrow(0, 1, 1)}, 1))),
              1e-4);
  } else {
    EXPECT_STREQ(GetParam(), "dynamic");  // whose frequencies change with every token
  }
}

TEST_P(LengthDependentRope, F74_GenerateCrossesByStartingTheTextAnew) {
  GenerationConfig config{.max_new_tokens = 10};
  const at::Tensor ids = at::cat({first(6), ids_tensor({{0, 0, 12, 13, 14, 5}})});
  const Inputs inputs{.input_ids = ids, .attention_mask = ids.ne(0)};
  const Output cached = generate(*model_, inputs, config);
  config.use_cache = false;
  EXPECT_TRUE(cached.sequences.equal(generate(*model_, inputs, config).sequences));
  EXPECT_EQ(cached.cache->get_seq_length(), 15);
}

TEST_P(LengthDependentRope, F74_GenerateUsesACacheOnlyWhereItsKeysFit) {
  GenerationConfig config{.max_new_tokens = 4};
  DynamicCache cache(model_->config());
  generate(*model_, {.input_ids = first(9)}, config, &cache);
  for (const std::int64_t tokens : {5, 7, 12}) {  // a prefix, across the boundary, beyond it
    const Inputs inputs{.input_ids = first(tokens)};
    EXPECT_TRUE(generate(*model_, inputs, config, &cache)
                    .sequences.equal(generate(*model_, inputs, config).sequences))
        << tokens;
  }
  cache.reset();
  generate(*model_, {.input_ids = first(5)}, config, &cache);  // holds 8 tokens
  const at::Tensor more = ids_tensor({{20, 21}});
  const at::Tensor whole = at::cat({cache.history().ids(), more}, 1);
  const Output continued =
      generate(*model_, {.input_ids = more, .continuation = true}, config, &cache);
  const Output anew = generate(*model_, {.input_ids = whole}, config);
  EXPECT_TRUE(continued.sequences.narrow(1, 2, 4).equal(anew.sequences.narrow(1, 10, 4)));
}

// The running row's whole text goes through its part of the cache; the row that ended keeps the
// keys that it has.
TEST_P(LengthDependentRope, F74_ARowCrossesAfterAnotherHasEnded) {
  const Rows prompts = {{5, 6, 7}, {8, 9, 10, 11, 12}};
  const std::vector<std::int64_t> ends = {2, 6};
  const Padded batch = padded(prompts);
  DynamicCache growing(model_->config());
  StaticCache fixed(model_->config(), {.max_cache_len = 24});
  for (Cache* cache : {static_cast<Cache*>(&growing), static_cast<Cache*>(&fixed)}) {
    const at::Tensor made = generate(*model_,
                                     {.input_ids = batch.ids,
                                      .attention_mask = batch.mask,
                                      .stopping_criteria = {std::make_shared<EndAfter>(ends)}},
                                     {.max_new_tokens = 6, .pad_token_id = kPad}, cache)
                                .sequences.narrow(1, 5, 6);
    Rows turn;
    for (std::int64_t i = 0; i < 2; ++i) {
      const auto at = static_cast<std::size_t>(i);
      std::vector<std::int64_t> row = alone(*model_, prompts[at], ends[at]);
      turn.push_back(prompts[at]);
      turn.back().insert(turn.back().end(), row.begin(), row.end());
      EXPECT_EQ(held_tokens(*cache, i),
                std::vector<std::int64_t>(turn.back().begin(), turn.back().end() - 1));
      turn.back().insert(turn.back().end(), {30, 31, 32, 33});
      row.resize(6, kPad);
      EXPECT_EQ(numbers_of(made[i]), row);
    }
    const Padded next = padded(turn);
    const at::Tensor more = generate(*model_, {.input_ids = next.ids, .attention_mask = next.mask},
                                     {.max_new_tokens = 4, .pad_token_id = kPad}, cache)
                                .sequences.narrow(1, next.ids.size(1), 4);
    for (std::int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(numbers_of(more[i]), alone(*model_, turn[static_cast<std::size_t>(i)], 4)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LengthDependentRope, ::testing::Values("dynamic", "longrope"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace kvcache::testing
