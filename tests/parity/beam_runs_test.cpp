// Beam search and beam sampling against the oracle: ids and scores, alone and as a row of a padded
// batch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/processors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int64_t>;

class BeamRuns : public ::testing::TestWithParam<const char*> {
 protected:
  // On tensors this small, threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  const LanguageModel& model() const { return checkpoint_of_either_sort(GetParam()); }

  json cases() const { return parity_golden(std::string("beam_runs/") + GetParam()).at("cases"); }

  static GenerationConfig config_of(const json& item) {
    return GenerationConfig::from_json(item.at("generation_config").dump());
  }

  static Inputs inputs_of(const json& item) {
    Inputs inputs{.input_ids = ids_tensor(item.at("input_ids").get<std::vector<Ids>>()),
                  .attention_mask = ids_tensor(item.at("attention_mask").get<std::vector<Ids>>())};
    if (item.contains("seed")) {
      inputs.generator = make_generator(item.at("seed").get<std::uint64_t>());
    }
    return inputs;
  }

  std::int64_t prompt_columns(const Inputs& inputs) const {
    return model().is_encoder_decoder() ? 1 : inputs.input_ids.size(1);
  }

  // Row `row` holds `expected`, and behind it nothing but padding.
  void expect_row(const Output& output, std::int64_t row, std::int64_t begin, const Ids& expected,
                  std::int64_t pad) const {
    const at::Tensor made =
        output.sequences[row].narrow(0, begin, output.sequences.size(1) - begin);
    const auto count = std::int64_t(expected.size());
    ASSERT_GE(made.numel(), count) << made;
    EXPECT_TRUE(made.narrow(0, 0, count).equal(at::tensor(expected, at::kLong)))
        << made << at::tensor(expected, at::kLong);
    EXPECT_TRUE(made.narrow(0, count, made.numel() - count).eq(pad).all().item<bool>()) << made;
  }

  void expect_rows(const json& item, const Inputs& inputs, const Output& output,
                   std::int64_t first = 0) const {
    const auto ids = item.at("new_ids").get<std::vector<Ids>>();
    const auto scores = item.at("scores").get<std::vector<double>>();
    const std::int64_t pad = item.at("generation_config").at("pad_token_id");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t row = first + std::int64_t(i);
      expect_row(output, row, prompt_columns(inputs), ids[i], pad);
      EXPECT_NEAR((*output.sequences_scores)[row].item<double>(), scores[i],
                  1e-4 * std::max(1.0, std::abs(scores[i])))
          << row;
    }
  }
};

TEST_P(BeamRuns, IdsAndScoresAreTheOracles) {
  for (const json& item : cases()) {
    SCOPED_TRACE(item.at("name"));
    for (const bool use_cache : {true, false}) {
      SCOPED_TRACE(use_cache);
      GenerationConfig config = config_of(item);
      config.use_cache = use_cache;
      const Inputs inputs = inputs_of(item);
      const Output output = generate(model(), inputs, config);
      const auto ids = item.at("new_ids").get<std::vector<Ids>>();
      ASSERT_EQ(output.sequences.size(0), std::int64_t(ids.size()));
      ASSERT_EQ(output.sequences_scores->sizes(), at::IntArrayRef({std::int64_t(ids.size())}));
      std::size_t longest = 0;
      for (const Ids& row : ids) longest = std::max(longest, row.size());
      EXPECT_EQ(output.sequences.size(1), prompt_columns(inputs) + std::int64_t(longest));
      expect_rows(item, inputs, output);
    }
  }
}

// The prompts as one batch, the shorter one padded: on the left, an encoder's on the right.
Inputs together(const Inputs& a, const Inputs& b, bool padded_right) {
  const std::int64_t columns = std::max(a.input_ids.size(1), b.input_ids.size(1));
  at::Tensor ids = at::zeros({2, columns}, at::kLong), mask = at::zeros({2, columns}, at::kLong);
  const auto put = [&](std::int64_t row, const at::Tensor& text) {
    const std::int64_t first = padded_right ? 0 : columns - text.numel();
    ids[row].narrow(0, first, text.numel()).copy_(text);
    mask[row].narrow(0, first, text.numel()).fill_(1);
  };
  put(0, a.input_ids[0]);
  put(1, b.input_ids[0]);
  return {.input_ids = ids, .attention_mask = mask};
}

TEST_P(BeamRuns, F41_RowsOfAPaddedBatchAreTheirSoloRuns) {
  const json all = cases();
  int pairs = 0;
  for (const json& item : all) {
    const std::string name = item.at("name"), setting = name.substr(0, name.find('.'));
    if (item.contains("seed") || !name.ends_with(".a")) continue;
    SCOPED_TRACE(setting);
    const auto mate = std::find_if(all.begin(), all.end(), [&](const json& other) {
      return other.at("name") == setting + ".b" &&
             other.at("generation_config") == item.at("generation_config");
    });
    if (mate == all.end()) continue;
    const Inputs inputs = together(inputs_of(item), inputs_of(*mate), model().is_encoder_decoder());
    const Output output = generate(model(), inputs, config_of(item));
    expect_rows(item, inputs, output);
    expect_rows(*mate, inputs, output, std::int64_t(item.at("new_ids").size()));
    ++pairs;
  }
  EXPECT_GE(pairs, 20);
}

INSTANTIATE_TEST_SUITE_P(Goldens, BeamRuns,
                         ::testing::Values("llama", "mistral", "gemma3_text", "lfm2", "t5"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace kvcache::testing
