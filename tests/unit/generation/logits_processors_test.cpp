// The processors alone, against what the oracle's make of the same scores.
#include "kvcache/generation/logits_processors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace kvcache {
namespace {

using nlohmann::json;

json golden(const std::string& processor) {
  const std::string path =
      std::string(KVCACHE_TEST_DATA_DIR "/parity/goldens/processors/") + processor + ".json";
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return json::parse(file);
}

at::Tensor ids_of(const json& rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> values;
  for (const json& row : rows) {
    for (const json& id : row) values.push_back(id.get<std::int64_t>());
  }
  return at::tensor(values, at::kLong).reshape({count, -1});
}

at::Tensor scores_of(const json& rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<double> values;
  for (const json& row : rows) {
    for (const json& score : row) {
      values.push_back(score.is_string() ? -INFINITY : score.get<double>());
    }
  }
  return at::tensor(values, at::kDouble).to(at::kFloat).reshape({count, -1});
}

at::Tensor eos_of(const json& arguments) {
  const json& eos = arguments.at("eos_token_id");
  return ids_of(json::array({eos.is_array() ? eos : json::array({eos})})).flatten();
}

std::shared_ptr<LogitsProcessor> make(const std::string& name, const json& arguments) {
  if (name == "repetition_penalty") {
    return std::make_shared<RepetitionPenaltyLogitsProcessor>(arguments.at(name).get<double>());
  }
  if (name == "temperature")
    return std::make_shared<TemperatureLogitsWarper>(arguments.at(name).get<double>());
  if (name == "top_k")
    return std::make_shared<TopKLogitsWarper>(arguments.at(name).get<std::int64_t>());
  if (name == "top_p") return std::make_shared<TopPLogitsWarper>(arguments.at(name).get<double>());
  if (name == "min_p") return std::make_shared<MinPLogitsWarper>(arguments.at(name).get<double>());
  const std::int64_t prompt = arguments.value("prompt_length", std::int64_t{0});
  return std::make_shared<MinLengthLogitsProcessor>(prompt + arguments.at(name).get<std::int64_t>(),
                                                    eos_of(arguments));
}

at::Tensor input_scores(const json& item) {
  if (item.contains("scores")) return scores_of(item.at("scores"));
  const std::string dtype = item.value("dtype", "float32");
  return at::zeros({1, item.at("equal_scores").get<std::int64_t>()},
                   dtype == "bfloat16"  ? at::kBFloat16
                   : dtype == "float16" ? at::kHalf
                                        : at::kFloat);
}

class Processors : public ::testing::TestWithParam<const char*> {};

TEST_P(Processors, MakeWhatTheOracleMakes) {
  const json file = golden(GetParam());
  ASSERT_FALSE(file.at("cases").empty());
  for (const json& item : file.at("cases")) {
    SCOPED_TRACE(item.at("name").get<std::string>());
    const at::Tensor scores = input_scores(item);
    const at::Tensor before = scores.clone();
    const at::Tensor ids = item.contains("input_ids") ? ids_of(item.at("input_ids"))
                                                      : at::zeros({scores.size(0), 1}, at::kLong);
    const at::Tensor after = make(GetParam(), item.at("arguments"))->process({ids}, scores);
    EXPECT_TRUE(scores.equal(before)) << "the input was written to";
    EXPECT_EQ(after.scalar_type(), scores.scalar_type());
    if (item.contains("kept")) {
      const at::Tensor kept = after.isfinite().sum(1);
      EXPECT_TRUE(kept.equal(ids_of(json::array({item.at("kept")})).flatten())) << kept;
    } else {
      EXPECT_TRUE(at::allclose(after, scores_of(item.at("outputs")), 1e-6, 1e-6)) << after;
    }
  }
}

TEST_P(Processors, RefuseWhatIsOutOfRange) {
  const json file = golden(GetParam());
  for (const json& item : file.at("refused")) {
    EXPECT_THROW(make(GetParam(), item.at("arguments")), ValueError) << item;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Processors,
                         ::testing::Values("repetition_penalty", "min_length", "min_new_tokens",
                                           "temperature", "top_k", "top_p", "min_p"),
                         [](const auto& suite) { return suite.param; });

// Two rows that say the same, one behind six pads with id 40.
TokenRows padded_rows() {
  const at::Tensor ids = at::tensor({40, 40, 40, 40, 40, 40, 12, 13, 14}, at::kLong);
  return {ids.unsqueeze(0), ids.ne(40).unsqueeze(0)};
}

// How many of the tokens with these probabilities top_p keeps.
std::int64_t kept_by_top_p(double p, const at::Tensor& probabilities) {
  const TokenRows text{at::zeros({1, 1}, at::kLong)};
  const at::Tensor scores = probabilities.log().unsqueeze(0);
  return TopPLogitsWarper(p).process(text, scores).isfinite().sum().item<std::int64_t>();
}

TEST(LogitsProcessors, F35RepetitionPenaltyOnceForEachIdAndBySign) {
  constexpr float kGone = -INFINITY;
  const TokenRows text{at::tensor({0, 1, 2, 2}, at::kLong).unsqueeze(0)};
  const at::Tensor scores = at::tensor({2.F, -2.F, kGone, 4.F}).unsqueeze(0);
  const at::Tensor after = RepetitionPenaltyLogitsProcessor(2).process(text, scores);
  EXPECT_TRUE(after.equal(at::tensor({1.F, -4.F, kGone, 4.F}).unsqueeze(0))) << after;
}

TEST(LogitsProcessors, F45TopPExactlyOnAStep) {
  const at::Tensor three = at::tensor({0.5F, 0.3F, 0.2F});
  EXPECT_EQ(kept_by_top_p(0.5, three), 1);
  EXPECT_EQ(kept_by_top_p(0.79, three), 2);
  EXPECT_EQ(kept_by_top_p(0.8, three), 2);
  EXPECT_EQ(kept_by_top_p(0.81, three), 3);
  EXPECT_EQ(kept_by_top_p(0.5, at::tensor({0.5F, 0.5F})), 1);
}

TEST(LogitsProcessors, F46TopPSumsInFloat32) {
  const TokenRows text{at::zeros({1, 1}, at::kLong)};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor scores = at::zeros({1, 4096}, dtype);
    EXPECT_EQ(TopPLogitsWarper(0.5).process(text, scores).isfinite().sum().item<std::int64_t>(),
              2048)
        << dtype;
  }
}

TEST(LogitsProcessors, F34RepetitionPenaltyIgnoresPadding) {
  const at::Tensor scores = at::linspace(-2, 2, 64).unsqueeze(0);
  const TokenRows solo{at::tensor({12, 13, 14}, at::kLong).unsqueeze(0)};
  RepetitionPenaltyLogitsProcessor penalty(1.5);
  EXPECT_TRUE(penalty.process(padded_rows(), scores).equal(penalty.process(solo, scores)));
}

// Bans every id of the text, as no_repeat_ngram_size = 1 does.
class BanRepeated final : public LogitsProcessor {
 public:
  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    at::Tensor result = scores.clone();
    for (std::int64_t row = 0; row < scores.size(0); ++row) {
      result.select(0, row).index_fill_(0, text.row(row), -INFINITY);
    }
    return result;
  }
};

TEST(LogitsProcessors, F34ARowIsSeenWithoutItsPadding) {
  const at::Tensor scores = at::zeros({1, 64});
  const at::Tensor banned = BanRepeated().process(padded_rows(), scores).isinf().nonzero();
  EXPECT_TRUE(banned.select(1, 1).equal(at::tensor({12, 13, 14}, at::kLong))) << banned;
}

TEST(LogitsProcessors, RefuseNumbersThatAreNone) {
  EXPECT_THROW(RepetitionPenaltyLogitsProcessor{NAN}, ValueError);
  EXPECT_THROW(RepetitionPenaltyLogitsProcessor{INFINITY}, ValueError);
  EXPECT_THROW(TemperatureLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(TopPLogitsWarper{NAN}, ValueError);
  EXPECT_THROW(MinPLogitsWarper{NAN}, ValueError);
}

}  // namespace
}  // namespace kvcache
