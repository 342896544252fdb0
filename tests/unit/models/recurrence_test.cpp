// Recurrences against the oracle's values, and against themselves: in pieces of any size, and with
// the state after each token.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/io/safetensors.h"
#include "kvcache/models/causal_convolution.h"
#include "kvcache/models/recurrence.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

at::Tensor golden(const std::string& name) {
  static const SafetensorsFile file =
      SafetensorsFile::open(KVCACHE_TEST_DATA_DIR "/parity/goldens/recurrences.safetensors");
  return file.tensor(name);
}

struct Piece {
  std::int64_t first, count, wanted;
};

// A recurrence over a golden's tokens [first, first + count) that goes on from a state.
struct Recurrence {
  std::string name;
  std::int64_t token_dim;
  std::optional<at::Tensor> state;
  std::function<ScanResult(const Piece&, const std::optional<at::Tensor>&)> run;
};

Recurrence selective() {
  return {"selective_scan", 1, std::nullopt,
          [](const Piece& piece, const std::optional<at::Tensor>& state) {
            const auto part = [&](const std::string& name) {
              return golden("selective_scan." + name).narrow(1, piece.first, piece.count);
            };
            return selective_scan({.x = part("x"),
                                   .time_steps = part("time_steps"),
                                   .rates = golden("selective_scan.rates"),
                                   .input_weights = part("input_weights"),
                                   .output_weights = part("output_weights"),
                                   .state = state,
                                   .wanted = piece.wanted});
          }};
}

Recurrence linear(const std::string& name, bool delta) {
  return {name, 2, golden(name + ".state"),
          [name, delta](const Piece& piece, const std::optional<at::Tensor>& state) {
            const auto part = [&](const std::string& what) {
              return golden(name + "." + what).narrow(2, piece.first, piece.count);
            };
            LinearAttentionInput input{.queries = part("queries"),
                                       .keys = part("keys"),
                                       .values = part("values"),
                                       .log_decay = part("log_decay"),
                                       .state = state,
                                       .wanted = piece.wanted};
            if (delta) input.learning_rates = part("learning_rates");
            return linear_attention(input);
          }};
}

class Recurrences : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::int64_t kTokens = 70;

  Recurrence recurrence() const {
    if (GetParam() == "selective_scan") return selective();
    return linear(GetParam(), GetParam() == "delta_rule");
  }
  at::Tensor output() const { return golden(GetParam() + ".output"); }
  at::Tensor last() const { return golden(GetParam() + ".last"); }
};

TEST_P(Recurrences, OutputsAndStatesAreTheOraclesInPiecesOfAnySize) {
  const Recurrence recurrence = this->recurrence();
  for (const std::int64_t size : {70, 1, 2, 5, 64, 65}) {
    std::optional<at::Tensor> state = recurrence.state;
    std::vector<at::Tensor> outputs;
    for (std::int64_t first = 0; first < kTokens; first += size) {
      const ScanResult result =
          recurrence.run({first, std::min(size, kTokens - first), /*wanted=*/1}, state);
      ASSERT_EQ(result.states.size(0), 1);
      state = result.states[0];
      outputs.push_back(result.output);
    }
    EXPECT_CLOSE(at::cat(outputs, recurrence.token_dim), output(), 2e-5) << "pieces of " << size;
    EXPECT_CLOSE(*state, last(), 2e-5) << "pieces of " << size;
  }
}

TEST_P(Recurrences, TheStateAfterEachTokenIsThatOfAShorterRun) {
  const Recurrence recurrence = this->recurrence();
  for (const std::int64_t wanted : {2, 3, 16, 70}) {
    const ScanResult all = recurrence.run({0, kTokens, wanted}, recurrence.state);
    ASSERT_EQ(all.states.size(0), wanted);
    EXPECT_CLOSE(all.output, output(), 2e-5);
    for (std::int64_t i = 0; i < wanted; ++i) {
      const std::int64_t length = kTokens - wanted + 1 + i;
      EXPECT_CLOSE(all.states[i], recurrence.run({0, length, 1}, recurrence.state).states[0], 2e-5)
          << wanted << " wanted, after " << length;
    }
  }
}

TEST_P(Recurrences, TheGivenStateStaysAndStatesKeepNoMoreThanThemselves) {
  const Recurrence recurrence = this->recurrence();
  const at::Tensor state = golden(GetParam() + ".last"), copy = state.clone();
  for (const std::int64_t count : {1, 70}) {
    const ScanResult result = recurrence.run({0, count, 1}, state);
    EXPECT_TRUE(state.equal(copy));
    EXPECT_TRUE(result.states.is_contiguous());
    EXPECT_EQ(result.states.storage().nbytes(), result.states.nbytes());
  }
}

TEST_P(Recurrences, ComputeInFloat32WhateverTheDtype) {
  const Recurrence recurrence = this->recurrence();
  const ScanResult result = recurrence.run({0, 3, 1}, last().to(at::kBFloat16));
  EXPECT_EQ(result.output.scalar_type(), at::kFloat);
  EXPECT_EQ(result.states.scalar_type(), at::kFloat);
}

TEST_P(Recurrences, RefuseWhatDoesNotFit) {
  const Recurrence recurrence = this->recurrence();
  EXPECT_THROW(recurrence.run({0, 3, 4}, recurrence.state), ValueError);
  EXPECT_THROW(recurrence.run({0, 3, 0}, recurrence.state), ValueError);
  EXPECT_THROW(recurrence.run({0, 3, 1}, last().narrow(0, 0, 1)), ValueError);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Recurrences,
                         ::testing::Values("selective_scan", "duality", "delta_rule"),
                         [](const auto& suite) { return suite.param; });

TEST(CausalConvolution, SumsATokenAndThoseBeforeIt) {
  // Two channels, kernel of 3, so two columns of left context before three tokens.
  const at::Tensor x =
      at::tensor({0.F, 0.F, 1.F, 2.F, 3.F, 1.F, 1.F, 1.F, 0.F, 0.F}).view({1, 2, 5});
  const at::Tensor weight = at::tensor({100.F, 10.F, 1.F, 3.F, 2.F, 1.F}).view({2, 1, 3});
  EXPECT_TRUE(causal_convolution(x, weight).equal(
      at::tensor({1.F, 12.F, 123.F, 6.F, 5.F, 3.F}).view({1, 2, 3})));
  EXPECT_TRUE(causal_convolution(x, weight, at::tensor({1000.F, 0.F}))
                  .equal(at::tensor({1001.F, 1012.F, 1123.F, 6.F, 5.F, 3.F}).view({1, 2, 3})));
}

}  // namespace
}  // namespace kvcache::testing
