// What drafts are made of: the text itself, and another model's guesses.
#include "generation/draft_source.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "generation/draft_model.h"
#include "generation/prompt_lookup.h"
#include "tests/support/checkpoints.h"
#include "tests/support/ended_rows.h"
#include "tests/support/tensors.h"

namespace kvcache::detail {
namespace {

using Ids = std::vector<std::int64_t>;
using testing::checkpoint;
using ::testing::ElementsAre;
using testing::ids_tensor;
using ::testing::IsEmpty;

Ids looked_up(const Ids& text, const GenerationConfig& config, std::int64_t most = 9) {
  return PromptLookup(config).propose({ids_tensor({text})}, most);
}

TEST(PromptLookup, LooksForTheLongestNgramFirst) {
  // 2 came first before 8, 1 2 before 7, 4 1 2 never.
  const Ids text = {5, 2, 8, 1, 2, 7, 4, 1, 2};
  GenerationConfig config{.prompt_lookup_num_tokens = 2};
  for (const auto& [ngram, first] : {std::pair{1, 8}, {2, 7}, {3, 7}, {20, 7}}) {
    config.max_matching_ngram_size = ngram;
    EXPECT_EQ(looked_up(text, config).at(0), first) << ngram;
  }
  config.max_matching_ngram_size.reset();  // 2
  EXPECT_THAT(looked_up(text, config), ElementsAre(7, 4));
  EXPECT_THAT(looked_up({9, 9, 1, 9, 6, 1, 9}, config), ElementsAre(6, 1));
}

TEST(PromptLookup, TakesTheFirstPlace) {
  const GenerationConfig config{.prompt_lookup_num_tokens = 3, .max_matching_ngram_size = 2};
  EXPECT_THAT(looked_up({1, 2, 7, 6, 1, 2, 8, 1, 2}, config), ElementsAre(7, 6, 1));
}

TEST(PromptLookup, ADraftEndsAtEachLimitAndWithTheText) {
  GenerationConfig config{.prompt_lookup_num_tokens = 4};
  const Ids text = {1, 2, 3, 4, 5, 6, 7, 1, 2};
  EXPECT_THAT(looked_up(text, config), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(looked_up(text, config, 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(looked_up(text, config, 1), ElementsAre(3));
  config.prompt_lookup_num_tokens = 1;
  EXPECT_THAT(looked_up(text, config), ElementsAre(3));
  config.prompt_lookup_num_tokens = 20;
  EXPECT_THAT(looked_up(text, config, 20), ElementsAre(3, 4, 5, 6, 7, 1, 2));
  // Places may overlap with the n-gram itself.
  EXPECT_THAT(looked_up({3, 4, 3, 4, 3}, config), ElementsAre(4, 3));
  EXPECT_THAT(looked_up({3, 3, 3}, config), ElementsAre(3));
}

TEST(PromptLookup, NothingThatDidNotComeBefore) {
  const GenerationConfig config{.prompt_lookup_num_tokens = 4, .max_matching_ngram_size = 3};
  EXPECT_THAT(looked_up({1, 2, 3, 4}, config), IsEmpty());
  EXPECT_THAT(looked_up({1}, config), IsEmpty());
  EXPECT_THAT(looked_up({1, 2}, config), IsEmpty());
  EXPECT_THAT(looked_up({1, 1}, config), ElementsAre(1));  // shorter than the n-gram
}

TEST(PromptLookup, PaddingIsNoText) {
  const GenerationConfig config{.prompt_lookup_num_tokens = 4};
  const Ids text = {2, 9, 1, 2};
  EXPECT_THAT(looked_up(text, config), ElementsAre(9, 1, 2));
  const TokenRows padded{ids_tensor({text}), ids_tensor({{0, 0, 1, 1}}).to(at::kBool)};
  EXPECT_THAT(PromptLookup(config).propose(padded, 9), IsEmpty());
}

// Says after each id the next larger one, with a probability of 0.9 or that of `confidence`, and
// notes what is fed.
class NextId final : public LanguageModel {
 public:
  explicit NextId(std::map<std::int64_t, double> confidence = {})
      : LanguageModel(checkpoint("llama").config(), at::kFloat, at::kCPU),
        confidence_(std::move(confidence)) {}

  mutable std::vector<Ids> fed;

 protected:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    checkpoint("llama").forward(input, cache);  // which fills the cache
    fed.push_back(testing::numbers_of(input.input_ids[0]));
    const std::int64_t next = fed.back().back() + 1, others = config().vocab_size - 1;
    const double p = confidence_.count(next) > 0 ? confidence_.at(next) : 0.9;
    at::Tensor logits = at::zeros({1, 1, others + 1});
    logits[0][0][next].fill_(std::log(p / (1 - p) * double(others)));
    return logits;
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }  // never asked

 private:
  std::map<std::int64_t, double> confidence_;
};

TEST(DraftModel, StopsBeforeATokenThatItIsNotSureOf) {
  const NextId model({{12, 0.7}, {14, 0.3}});
  const auto draft = [&](std::optional<double> threshold) {
    const GenerationConfig config{.num_assistant_tokens = 6,
                                  .assistant_confidence_threshold = threshold};
    return DraftModel(model, config).propose({ids_tensor({{4, 10}})}, 20);
  };
  EXPECT_THAT(draft(0.0), ElementsAre(11, 12, 13, 14, 15, 16));
  EXPECT_THAT(draft(0.2), ElementsAre(11, 12, 13, 14, 15, 16));
  EXPECT_THAT(draft(0.5), ElementsAre(11, 12, 13));
  EXPECT_THAT(draft(std::nullopt), ElementsAre(11, 12, 13));  // 0.4
  EXPECT_THAT(draft(0.8), ElementsAre(11));
  EXPECT_THAT(draft(0.95), IsEmpty());
}

TEST(DraftModel, ADraftEndsAtEachLimitAndWithAnEnd) {
  const NextId model;
  const auto draft = [&](const GenerationConfig& config, std::int64_t most) {
    return DraftModel(model, config).propose({ids_tensor({{4, 10}})}, most);
  };
  EXPECT_THAT(draft({.num_assistant_tokens = 3}, 9), ElementsAre(11, 12, 13));
  EXPECT_THAT(draft({.num_assistant_tokens = 3}, 2), ElementsAre(11, 12));
  EXPECT_THAT(draft({.eos_token_id = {{40, 12}}, .num_assistant_tokens = 5}, 9),
              ElementsAre(11, 12));
  EXPECT_EQ(draft({}, 30).size(), 20U);
}

TEST(DraftModel, TheScheduleGrowsByTwoAndShrinksByOne) {
  const NextId model;
  GenerationConfig config{.num_assistant_tokens = 5};
  struct Step {
    std::size_t drafted;
    std::int64_t accepted;
  };
  const std::vector<Step> steps = {{5, 5}, {5, 0}, {4, 3}, {3, 1}, {2, 0}, {1, 0},
                                   {1, 1}, {3, 3}, {5, 4}, {4, 4}, {5, 5}};
  const TokenRows text{ids_tensor({{4, 10}})};
  for (const char* schedule : {"heuristic", "heuristic_transient"}) {
    config.num_assistant_tokens_schedule = schedule;
    DraftModel drafts(model, config);
    for (const Step& step : steps) {
      EXPECT_EQ(drafts.propose(text, 20).size(), step.drafted) << schedule;
      drafts.note_accepted(step.accepted);
    }
  }
  config.num_assistant_tokens_schedule = "constant";
  DraftModel drafts(model, config);
  for (const Step& step : steps) {
    EXPECT_EQ(drafts.propose(text, 20).size(), 5U);
    drafts.note_accepted(step.accepted);
  }
}

TEST(DraftModel, FeedsWhatItsCacheDoesNotHold) {
  const NextId model;
  const GenerationConfig config{.num_assistant_tokens = 3};
  DraftModel drafts(model, config);
  const auto fed = [&](const Ids& text) {
    model.fed.clear();
    drafts.propose({ids_tensor({text})}, 9);
    return model.fed;
  };
  EXPECT_THAT(fed({4, 10}), ElementsAre(Ids{4, 10}, Ids{11}, Ids{12}));
  // 13, the draft's last, was never fed; 11 and 12 are held.
  EXPECT_THAT(fed({4, 10, 11, 12, 13, 30}), ElementsAre(Ids{13, 30}, Ids{31}, Ids{32}));
  EXPECT_THAT(fed({4, 10, 11, 12, 13, 30, 31, 40}), ElementsAre(Ids{40}, Ids{41}, Ids{42}));
  EXPECT_THAT(fed({4, 10, 11, 12, 13, 30, 31, 40, 50}), ElementsAre(Ids{50}, Ids{51}, Ids{52}));
  // The last token's scores are wanted, also where it is held.
  EXPECT_THAT(fed({4, 10, 11}), ElementsAre(Ids{11}, Ids{12}, Ids{13}));
  EXPECT_THAT(fed({5, 10}), ElementsAre(Ids{5, 10}, Ids{11}, Ids{12}));
}

// Whatever was accepted before, it drafts what one that sees the text for the first time does, and
// goes back by what was rejected alone.
TEST(DraftModel, F40GoesBackByWhatWasRejected) {
  const GenerationConfig config{.num_assistant_tokens = 4, .assistant_confidence_threshold = 0};
  for (const char* name : {"llama", "mistral", "gemma3_text", "llama4_text", "lfm2", "mamba",
                           "mamba2", "jamba", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const testing::NotingModel model(checkpoint(name));
    DraftModel drafts(model, config);
    Ids text = {3, 9, 5, 3, 9, 7};
    auto behind = static_cast<std::int64_t>(text.size());
    for (const std::int64_t accepted : {0, 3, 1, 4, 2, 0, 0, 4, 4, 1}) {
      model.tokens.clear();
      const Ids draft = drafts.propose({ids_tensor({text})}, 9);
      EXPECT_EQ(draft, DraftModel(checkpoint(name), config).propose({ids_tensor({text})}, 9));
      ASSERT_EQ(draft.size(), 4U);
      EXPECT_THAT(model.tokens, ElementsAre(behind, 1, 1, 1));
      drafts.note_accepted(accepted);
      text.insert(text.end(), draft.begin(), draft.begin() + accepted);
      text.push_back(accepted == 4 ? 17 : (draft[std::size_t(accepted)] + 1) % 64);
      behind = accepted == 4 ? 2 : 1;  // a draft's last token was not fed
    }
  }
}

}  // namespace
}  // namespace kvcache::detail
