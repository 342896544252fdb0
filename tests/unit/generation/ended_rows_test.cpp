// generate() with texts that end at strings or in time: what is returned, and what the cache holds.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/table_text.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;
using testing::spelled;
using testing::spelled_ids;

at::Tensor prompt() {
  return ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8}, {9, 9, 3, 4, 8, 1, 30, 2, 40}});
}

std::int64_t id_at(const at::Tensor& ids, std::int64_t row, std::int64_t column) {
  return ids[row][column].item<std::int64_t>();
}

TEST(StopStringsInGenerate, F47EndARowAtTheTokenThatCompletesThem) {
  for (const char* name : {"llama", "mistral", "lfm2"}) {
    const CausalLM& model = checkpoint(name);
    const at::Tensor one = prompt().narrow(0, 0, 1);
    const at::Tensor free = generate(model, {.input_ids = one}, {.max_new_tokens = 8}).sequences;
    // The third new token's middle up to the fourth's.
    const std::string third = spelled(id_at(free, 0, 11)), fourth = spelled(id_at(free, 0, 12));
    const std::string stop = third.substr(1) + fourth.substr(0, 2);
    DynamicCache cache(model.config());
    const GenerationConfig config{.max_new_tokens = 8, .stop_strings = {{stop}}};
    const Output output =
        generate(model, {.input_ids = one, .text = spelled_ids()}, config, &cache);
    ASSERT_LE(output.sequences.size(1), 13) << name;
    const std::int64_t length = output.sequences.size(1);
    EXPECT_TRUE(output.sequences.equal(free.narrow(1, 0, length))) << name;
    EXPECT_EQ(cache.get_seq_length(), length - 1);
    const at::Tensor more =
        generate(model, {.input_ids = output.sequences}, {.max_new_tokens = 17 - length}, &cache)
            .sequences;
    EXPECT_TRUE(more.equal(free)) << name;
  }
}

TEST(StopStringsInGenerate, RowsEndByThemselves) {
  const CausalLM& model = checkpoint("llama");
  const at::Tensor free = generate(model, {.input_ids = prompt()}, {.max_new_tokens = 6}).sequences;
  const std::int64_t second = id_at(free, 0, 10);
  const GenerationConfig config{
      .max_new_tokens = 6, .stop_strings = {{spelled(second)}}, .pad_token_id = 0};
  const at::Tensor made =
      generate(model, {.input_ids = prompt(), .text = spelled_ids()}, config).sequences;
  for (std::int64_t row = 0; row < 2; ++row) {
    bool ended = false;
    for (std::int64_t column = 9; column < made.size(1); ++column) {
      EXPECT_EQ(id_at(made, row, column), ended ? 0 : id_at(free, row, column));
      ended = ended || id_at(free, row, column) == second;
    }
  }
  EXPECT_EQ(id_at(made, 0, 10), second);
}

TEST(StopStringsInGenerate, NeedTextAndAPadToken) {
  const CausalLM& model = checkpoint("llama");
  const GenerationConfig config{.max_new_tokens = 3, .stop_strings = {{"x"}}};
  EXPECT_THAT(refusal<ValueError>(
                  [&] { generate(model, {.input_ids = prompt().narrow(0, 0, 1)}, config); }),
              HasSubstr("stop_strings needs a tokenizer"));
  EXPECT_THAT(refusal<ValueError>(
                  [&] { generate(model, {.input_ids = prompt(), .text = spelled_ids()}, config); }),
              HasSubstr("pad_token_id"));
}

TEST(MaxTimeInGenerate, EndsAllRowsAtTheirNextToken) {
  const CausalLM& model = checkpoint("llama");
  const auto length = [&](double seconds) {
    return generate(model, {.input_ids = prompt()}, {.max_new_tokens = 5, .max_time = seconds})
        .sequences.size(1);
  };
  EXPECT_EQ(length(0), 10);
  EXPECT_EQ(length(3600), 14);
}

}  // namespace
}  // namespace kvcache
