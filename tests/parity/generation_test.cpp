// generate() against the oracle's greedy and seeded sampled ids, for every family: with a cache,
// with one passed in, and without any.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using nlohmann::json;

at::Tensor tensor_of(const json& rows) { return testing::ids_tensor(rows.get<testing::Rows>()); }

json golden(const std::string& folder, const std::string& name) {
  const std::string path = KVCACHE_TEST_DATA_DIR "/parity/goldens/" + folder + "/" + name + ".json";
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return json::parse(file);
}

// The goldens of a folder that have this member.
std::vector<std::string> names_of(const std::string& folder, const std::string& member) {
  const std::filesystem::path path(KVCACHE_TEST_DATA_DIR "/parity/goldens/" + folder);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem();
    if (golden(folder, name).contains(member)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Inputs inputs_of(const json& item) {
  Inputs inputs{.input_ids = tensor_of(item.at("input_ids")),
                .attention_mask = tensor_of(item.at("attention_mask"))};
  if (item.contains("seed"))
    inputs.generator = make_generator(item.at("seed").get<std::uint64_t>());
  return inputs;
}

class GeneratedIds : public ::testing::TestWithParam<std::string> {
 protected:
  // On tensors this small, threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  void check(const json& item) {
    const CausalLM& model = testing::checkpoint(GetParam());
    GenerationConfig config = GenerationConfig::from_json(item.at("generation_config").dump());
    const at::Tensor expected = tensor_of(item.at("sequences"));
    SCOPED_TRACE(item.at("name").get<std::string>() + ", seed " +
                 item.value("seed", json()).dump());

    const Output own = generate(model, inputs_of(item), config);
    EXPECT_TRUE(own.sequences.equal(expected)) << own.sequences << expected;
    ASSERT_TRUE(own.cache);
    EXPECT_EQ(own.cache->get_seq_length(), expected.size(1) - 1);

    DynamicCache cache(model.config());
    const Output given = generate(model, inputs_of(item), config, &cache);
    EXPECT_TRUE(given.sequences.equal(expected)) << given.sequences << expected;
    EXPECT_FALSE(given.cache);
    EXPECT_EQ(cache.get_seq_length(), expected.size(1) - 1);

    config.cache_implementation = "static";
    const Output fixed = generate(model, inputs_of(item), config);
    EXPECT_TRUE(fixed.sequences.equal(expected)) << fixed.sequences << expected;
    config.cache_implementation.reset();

    config.prefill_chunk_size = 4;
    const Output in_pieces = generate(model, inputs_of(item), config);
    EXPECT_TRUE(in_pieces.sequences.equal(expected)) << in_pieces.sequences << expected;
    config.prefill_chunk_size.reset();

    config.use_cache = false;
    const Output uncached = generate(model, inputs_of(item), config);
    EXPECT_TRUE(uncached.sequences.equal(expected)) << uncached.sequences << expected;
    EXPECT_FALSE(uncached.cache);
  }
};

TEST_P(GeneratedIds, GreedyOnesAreTheOracles) {
  const json file = golden("families", GetParam());
  ASSERT_FALSE(file.at("greedy").empty());
  for (const json& item : file.at("greedy")) check(item);
}

using SampledIds = GeneratedIds;

TEST_P(SampledIds, AreTheOracles) {
  const json file = golden("sampling", GetParam());
  ASSERT_FALSE(file.at("cases").empty());
  for (const json& item : file.at("cases")) check(item);
}

INSTANTIATE_TEST_SUITE_P(Goldens, GeneratedIds, ::testing::ValuesIn(names_of("families", "greedy")),
                         [](const auto& suite) { return suite.param; });

INSTANTIATE_TEST_SUITE_P(Goldens, SampledIds, ::testing::ValuesIn(names_of("sampling", "cases")),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace kvcache
