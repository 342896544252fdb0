// Where a text ends: strings, wherever their tokens divide them, and time.
#include "kvcache/generation/stopping.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvcache/generation/stop_string_criteria.h"
#include "tests/support/refusal.h"
#include "tests/support/table_text.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;
using testing::table_text;

// Whether each step's newest token ends row 0: columns from `prompt` on come one by one.
std::vector<bool> steps(StopStringCriteria& criteria, const TokenRows& text, std::int64_t prompt) {
  std::vector<bool> result;
  for (std::int64_t length = prompt + 1; length <= text.length(); ++length) {
    const TokenRows so_far{
        text.ids.narrow(1, 0, length),
        text.valid ? std::optional(text.valid->narrow(1, 0, length)) : std::nullopt};
    result.push_back(criteria.complete(so_far)[0].item<bool>());
  }
  return result;
}

std::vector<bool> steps(std::vector<std::string> stops, const std::vector<std::int64_t>& ids,
                        std::int64_t prompt = 1) {
  StopStringCriteria criteria(std::move(stops), table_text({"", "ab", "c", "xcd", " ", "b"}));
  return steps(criteria, {ids_tensor({ids})}, prompt);
}

TEST(StopStrings, F47EndInAnyPlaceOfATokenAndSpanTokens) {
  EXPECT_THAT(steps({"abc"}, {0, 1, 2, 4}), ElementsAre(false, true, false));  // "abc "
  EXPECT_THAT(steps({"bx"}, {0, 1, 3, 4}),
              ElementsAre(false, true, false));                    // begins and ends inside
  EXPECT_THAT(steps({"xc"}, {0, 3, 3}), ElementsAre(true, true));  // inside one token
  EXPECT_THAT(steps({"b b"}, {0, 1, 4, 5, 5}), ElementsAre(false, false, true, false));
  EXPECT_THAT(steps({"zz"}, {0, 1, 2, 3}), ElementsAre(false, false, false));
  EXPECT_THAT(steps({"zz", "c", "d"}, {0, 1, 2, 3}), ElementsAre(false, true, true));
}

TEST(StopStrings, OverlappingBeginningsAreNotMissed) {
  // "ababc" after a false start.
  EXPECT_THAT(steps({"ababc"}, {0, 1, 1, 1, 2}), ElementsAre(false, false, false, true));
  EXPECT_THAT(steps({"bbb"}, {0, 5, 5, 5, 5}), ElementsAre(false, false, true, true));
}

TEST(StopStrings, BeginInThePromptButNeverEndThere) {
  EXPECT_THAT(steps({"abc"}, {0, 0, 1, 2}, 3), ElementsAre(true));
  EXPECT_THAT(steps({"ab"}, {0, 1, 2}, 2), ElementsAre(false));  // the prompt has it already
  EXPECT_THAT(steps({"ab"}, {0, 1, 2, 1}, 2), ElementsAre(false, true));
}

TEST(StopStrings, TokensWithoutTextChangeNothing) {
  EXPECT_THAT(steps({"abc"}, {0, 1, 0, 0, 2}), ElementsAre(false, false, false, true));
}

TEST(StopStrings, RowsArePerRowAndPaddingIsNoText) {
  StopStringCriteria criteria({"ac"}, table_text({"?", "a", "c"}));
  const at::Tensor ids = ids_tensor({{0, 1, 2}, {1, 0, 2}, {1, 1, 2}});
  at::Tensor valid = at::ones({3, 3}, at::kBool);
  valid[0][0] = false;
  valid[1][1] = false;  // "a" and "c" meet over the padding
  const at::Tensor complete = criteria.complete({ids, valid});
  EXPECT_TRUE(complete.equal(at::tensor(std::vector<int>{1, 1, 1}).to(at::kBool)));

  StopStringCriteria counted({"ac"}, table_text({"?", "a", "c"}));
  EXPECT_TRUE(counted.complete({ids}).equal(at::tensor(std::vector<int>{1, 0, 1}).to(at::kBool)));
}

TEST(StopStrings, F47EmptyOnesAndNoTextAreRefused) {
  const auto refused = [](std::vector<std::string> stops, MakeRunningText text) {
    return refusal<ValueError>([&] { StopStringCriteria(std::move(stops), std::move(text)); });
  };
  EXPECT_THAT(refused({}, table_text({"a"})), HasSubstr("stop_strings is empty"));
  EXPECT_THAT(refused({"a", ""}, table_text({"a"})), HasSubstr("empty string"));
  EXPECT_THAT(refused({"a"}, nullptr), HasSubstr("needs a tokenizer"));
}

TEST(MaxTime, EndsAllRowsOnceTheTimeIsOver) {
  const TokenRows text{ids_tensor({{1}, {2}})};
  MaxTimeCriteria hour(3600), moment(1e-3);
  EXPECT_FALSE(hour.complete(text).any().item<bool>());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(moment.complete(text).all().item<bool>());
  EXPECT_EQ(moment.complete(text).numel(), 2);
  EXPECT_THAT(refusal<ValueError>([] { MaxTimeCriteria(-1); }), HasSubstr("but is -1"));
}

}  // namespace
}  // namespace kvcache
