// Rotary frequencies of every rope type, from config.json on, against the oracle's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kvcache/models/registry.h"
#include "kvcache/models/rope.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

using nlohmann::json;

ModelConfig read_config(const json& fields) {
  const ConfigReader reader = ConfigReader::from_text(fields.dump(), "config.json");
  return model_families().find(fields.at("model_type").get<std::string>()).read_config(reader);
}

TEST(Ropes, FrequenciesAreTheOracles) {
  std::ifstream file(KVCACHE_TEST_DATA_DIR "/parity/goldens/ropes.json");
  const json golden = json::parse(file);
  std::set<std::string> types;
  for (const json& item : golden.at("cases")) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    const ModelConfig config = read_config(item.at("config"));
    types.insert(config.rope.type);
    EXPECT_NEAR(config.rope.attention_factor, item.at("attention_factor").get<double>(), 1e-6);
    const Rope rope(config.rope, config.head_dim, at::kCPU);
    for (const json& at_length : item.at("at")) {
      const auto length = at_length.at("length").get<std::int64_t>();
      const at::Tensor expected =
          at::tensor(at_length.at("frequencies").get<std::vector<double>>(), at::kFloat);
      const at::Tensor found = rope.inverse_frequencies(rope.regime(length));
      ASSERT_EQ(found.sizes(), expected.sizes());
      EXPECT_CLOSE(found / expected, at::ones_like(expected), 1e-5) << "length " << length;
      // A regime is the least length with its frequencies.
      EXPECT_LE(rope.regime(length), length);
      EXPECT_EQ(rope.regime(rope.regime(length)), rope.regime(length));
    }
  }
  const std::vector<std::string> known = rope_types();
  EXPECT_EQ(types, std::set<std::string>(known.begin(), known.end()));
}

}  // namespace
}  // namespace kvcache::testing
