// generate() with drafts, by prompt lookup and of another model, against the oracle's: equal ids.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "tests/support/checkpoints.h"
#include "tests/support/processors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int64_t>;

class DraftRuns : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }

  const LanguageModel& model() const { return checkpoint_of_either_sort(GetParam()); }

  std::vector<json> cases() const {
    std::vector<json> own;
    const json all = parity_golden("drafts").at("cases");
    for (const json& item : all) {
      if (item.at("family") == GetParam()) own.push_back(item);
    }
    return own;
  }
};

TEST_P(DraftRuns, IdsAreTheOracles) {
  const std::vector<json> own = cases();
  ASSERT_GT(own.size(), 15U);
  for (const json& item : own) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    const auto config = GenerationConfig::from_json(item.at("generation_config").dump());
    Inputs inputs{.input_ids = ids_tensor({item.at("input_ids").get<Ids>()})};
    if (item.contains("assistant")) {
      inputs.assistant_model = &checkpoint(item.at("assistant").get<std::string>());
    }
    const Output output = generate(model(), inputs, config);
    const std::int64_t begin = model().is_encoder_decoder() ? 1 : inputs.input_ids.size(1);
    const at::Tensor made = output.sequences.narrow(1, begin, output.sequences.size(1) - begin);
    const at::Tensor expected = ids_tensor({item.at("new_ids").get<Ids>()});
    EXPECT_TRUE(made.equal(expected)) << made << expected;
    EXPECT_EQ(output.cache->get_seq_length(), output.sequences.size(1) - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, DraftRuns,
                         ::testing::Values("llama", "mistral", "gemma3_text", "lfm2", "t5"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace kvcache::testing
