// generate() with each processor's setting against the oracle, greedy and sampled: ids and scores,
// alone and as a row of a padded batch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generation/configured.h"
#include "generation/configured_processors.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/processors.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int64_t>;

// A processor of one's own: adds the sine of each id.
class Tilt final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows&, const at::Tensor& scores) override {
    return scores.add(at::arange(scores.size(1)).to(at::kFloat).sin());
  }
};

class ProcessorRuns : public ::testing::TestWithParam<const char*> {
 protected:
  // On tensors this small, threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  const LanguageModel& model() const { return checkpoint_of_either_sort(GetParam()); }

  json cases() const {
    return parity_golden(std::string("processor_runs/") + GetParam()).at("cases");
  }

  static GenerationConfig config_of(const json& item) {
    return GenerationConfig::from_json(item.at("generation_config").dump());
  }

  static Inputs inputs_of(const json& item) {
    Inputs inputs{.input_ids = ids_tensor({item.at("input_ids").get<Ids>()})};
    if (item.contains("seed"))
      inputs.generator = make_generator(item.at("seed").get<std::uint64_t>());
    if (item.contains("tilt")) inputs.logits_processors = {std::make_shared<Tilt>()};
    return inputs;
  }

  // The processors' scores of each new token, made of the model's: that of the token, how many are
  // finite and their log-sum-exp. The goldens have 6 decimals.
  void expect_scores(const json& item, const Inputs& inputs, const Output& output) const {
    const GenerationConfig config = config_of(item);
    const std::int64_t steps = output.logits->size(1);
    const std::int64_t begin = output.sequences.size(1) - steps;
    const TokenRows start{output.sequences.narrow(1, 0, begin)};
    const TokenRows read = model().is_encoder_decoder() ? TokenRows{inputs.input_ids} : start;
    const std::int64_t longest =
        detail::max_length(config, begin, model().config().max_position_embeddings);
    const LogitsProcessors processors =
        detail::logits_processors(config, inputs.logits_processors,
                                  {.text = start,
                                   .read = read,
                                   .max_length = longest,
                                   .vocab_size = model().config().vocab_size});
    for (std::int64_t step = 0; step < steps; ++step) {
      at::Tensor scores = output.logits->select(1, step);
      const TokenRows text{output.sequences.narrow(1, 0, begin + step)};
      for (const auto& processor : processors) scores = processor->process(text, scores);
      const auto token = output.sequences[0][begin + step].item<std::int64_t>();
      const at::Tensor finite = scores[0].masked_select(scores[0].isfinite());
      const json& expected = item.at("scores").at(static_cast<std::size_t>(step));
      EXPECT_NEAR(scores[0][token].item<double>(), expected.at(0).get<double>(), 1e-4) << step;
      EXPECT_EQ(finite.numel(), expected.at(1).get<std::int64_t>()) << step;
      EXPECT_NEAR(finite.logsumexp(0).item<double>(), expected.at(2).get<double>(), 1e-4) << step;
    }
  }
};

TEST_P(ProcessorRuns, IdsAndScoresAreTheOracles) {
  for (const json& item : cases()) {
    SCOPED_TRACE(item.at("name").get<std::string>() + ", seed " +
                 item.value("seed", json()).dump());
    GenerationConfig config = config_of(item);
    config.output_logits = true;
    const Inputs inputs = inputs_of(item);
    const Output output = generate(model(), inputs, config);
    const at::Tensor expected = ids_tensor({item.at("new_ids").get<Ids>()});
    const std::int64_t count = expected.size(1), length = output.sequences.size(1);
    ASSERT_EQ(output.logits->size(1), count) << output.sequences;
    EXPECT_TRUE(output.sequences.narrow(1, length - count, count).equal(expected))
        << output.sequences << expected;
    expect_scores(item, inputs, output);
  }
}

// The prompt beside another one, the shorter of them padded: on the left, an encoder's on the
// right.
Inputs beside_another(const Inputs& alone, const Ids& other, bool padded_right) {
  const std::int64_t own = alone.input_ids.size(1), its = std::int64_t(other.size());
  const std::int64_t columns = std::max(own, its);
  at::Tensor ids = at::zeros({2, columns}, at::kLong), mask = at::zeros({2, columns}, at::kLong);
  const auto put = [&](std::int64_t row, const at::Tensor& text) {
    const std::int64_t first = padded_right ? 0 : columns - text.numel();
    ids[row].narrow(0, first, text.numel()).copy_(text);
    mask[row].narrow(0, first, text.numel()).fill_(1);
  };
  put(0, alone.input_ids[0]);
  put(1, at::tensor(other, at::kLong));
  return {.input_ids = ids, .attention_mask = mask, .logits_processors = alone.logits_processors};
}

TEST_P(ProcessorRuns, ARowOfAPaddedBatchIsItsSoloRun) {
  const json all = cases();
  for (const json& item : all) {
    if (item.contains("seed")) continue;
    const std::string name = item.at("name"), field = name.substr(0, name.find('.'));
    SCOPED_TRACE(name);
    for (const json& mate : all) {
      const std::string its = mate.at("name");
      if (its == name || its.substr(0, its.find('.')) != field || mate.contains("seed")) continue;
      const Inputs inputs = beside_another(inputs_of(item), mate.at("input_ids").get<Ids>(),
                                           model().is_encoder_decoder());
      const at::Tensor sequences = generate(model(), inputs, config_of(item)).sequences;
      const at::Tensor expected = ids_tensor({item.at("new_ids").get<Ids>()})[0];
      const std::int64_t begin = model().is_encoder_decoder() ? 1 : inputs.input_ids.size(1);
      const at::Tensor got = sequences[0].narrow(0, begin, sequences.size(1) - begin);
      ASSERT_GE(got.numel(), expected.numel());
      EXPECT_TRUE(got.narrow(0, 0, expected.numel()).equal(expected)) << got << expected;
      EXPECT_TRUE(
          got.narrow(0, expected.numel(), got.numel() - expected.numel()).eq(0).all().item<bool>())
          << got;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, ProcessorRuns,
                         ::testing::Values("llama", "mistral", "gemma3_text", "lfm2", "t5"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace kvcache::testing
