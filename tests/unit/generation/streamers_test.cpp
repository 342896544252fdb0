// Streamers between texts: what begins one, what a failure leaves, and what cannot stream.
#include "kvcache/generation/streamer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "kvcache/generation/resilient_generate.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/text_stream.h"
#include "kvcache/generation/text_streamer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/refusal.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using ::testing::HasSubstr;
using testing::ids_tensor;
using testing::refusal;

const CausalLM& model() { return testing::checkpoint("llama"); }

at::Tensor prompt() { return ids_tensor({{5, 6, 7}}); }

// A letter for each call: "b" of begin(), "p" of put(), "e" of end().
class Calls final : public Streamer {
 public:
  void begin() override { all += 'b'; }
  void put(const at::Tensor&) override {
    all += 'p';
    if (fails) throw std::runtime_error("enough");
  }
  void end() override { all += 'e'; }

  std::string all;
  bool fails = false;
};

// A character of every two tokens.
class Halves final : public RunningText {
 public:
  std::string push(std::int64_t) override { return ++pushed_ % 2 == 0 ? "2" : ""; }
  std::string finish() override { return pushed_ % 2 == 1 ? "?" : ""; }

 private:
  int pushed_ = 0;
};

std::unique_ptr<RunningText> no_text() { return nullptr; }

TEST(Streamers, AreToldThatATextBegins) {
  Calls calls;
  const Inputs inputs{.input_ids = prompt(), .streamer = &calls};
  generate(model(), inputs, {.max_new_tokens = 2});
  EXPECT_EQ(calls.all, "bppe");
  calls.fails = true;
  EXPECT_THROW(generate(model(), inputs, {.max_new_tokens = 2}), std::runtime_error);
  EXPECT_EQ(calls.all, "bppebp");
  EXPECT_THROW(generate(model(), inputs, {.max_new_tokens = 2, .do_sample = true}), ValueError);
  EXPECT_EQ(calls.all, "bppebp");  // nothing began
}

// Has no memory for its third pass.
class Starved final : public LanguageModel {
 public:
  Starved() : LanguageModel(model().config(), model().dtype(), model().device()) {}

 protected:
  at::Tensor run(const ForwardInput& input, Cache* cache) const override {
    TORCH_CHECK_WITH(OutOfMemoryError, passes_++ != 2, "no memory");
    return model().forward(input, cache);
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }

 private:
  mutable int passes_ = 0;
};

TEST(Streamers, SeeOneTextInSeveralAttempts) {
  Calls calls;
  const Inputs inputs{.input_ids = prompt(), .streamer = &calls};
  const GenerationConfig config{.max_new_tokens = 4};
  const ResilientOutput made = resilient_generate(Starved(), inputs, {config, config});
  EXPECT_EQ(made.attempts.size(), 2);
  EXPECT_EQ(calls.all, "bppppe");
}

TEST(Streamers, ForgetATextThatFailed) {
  std::string shown;
  bool fails = true;
  TextStreamer streamer([] { return std::make_unique<Halves>(); },
                        [&](std::string_view text) {
                          shown += text;
                          if (fails) throw std::runtime_error("enough");
                        });
  streamer.put(ids_tensor({{1}})[0]);
  const Inputs inputs{.input_ids = prompt(), .streamer = &streamer};
  EXPECT_THROW(generate(model(), inputs, {.max_new_tokens = 5}), std::runtime_error);
  EXPECT_EQ(shown, "2");  // of the second token; the one before goes with no other
  fails = false;
  shown.clear();
  generate(model(), inputs, {.max_new_tokens = 3});
  EXPECT_EQ(shown, "2?");
}

TEST(Streamers, PassTheBeginningThroughATextStream) {
  Calls calls;
  std::string all;
  TextStream stream([] { return std::make_unique<Halves>(); },
                    [](Streamer& streamer) -> Output {
                      streamer.put(ids_tensor({{1}})[0]);
                      return generate(model(), {.input_ids = prompt(), .streamer = &streamer},
                                      {.max_new_tokens = 3});
                    });
  for (const std::string& piece : stream) all += piece;
  EXPECT_EQ(all, "2?");
}

TEST(Streamers, NeedSomethingToCall) {
  EXPECT_THAT(refusal<ValueError>([] { CallbackStreamer(nullptr); }), HasSubstr("a function"));
  const std::function<void(const at::Tensor&)> empty;
  EXPECT_THAT(refusal<ValueError>([&] { CallbackStreamer streamer(empty); }),
              HasSubstr("a function"));
  EXPECT_THAT(refusal<ValueError>([] { TextStreamer(no_text, nullptr); }), HasSubstr("a function"));
}

TEST(Streamers, NeedATextThatBegins) {
  TextStreamer streamer(no_text, [](std::string_view) {});
  EXPECT_THAT(refusal<ValueError>([&] { streamer.put(ids_tensor({{1}})[0]); }),
              HasSubstr("returned null"));
  const auto refused = [](const Inputs& inputs, GenerationConfig config) {
    DynamicCache cache(model().config());
    const std::string message =
        refusal<ValueError>([&] { generate(model(), inputs, config, &cache); });
    EXPECT_EQ(cache.get_seq_length(), 0);
    return message;
  };
  EXPECT_THAT(refused({.input_ids = prompt(), .streamer = &streamer}, {.max_new_tokens = 2}),
              HasSubstr("returned null"));
  EXPECT_THAT(refused({.input_ids = prompt(), .text = no_text},
                      {.max_new_tokens = 2, .stop_strings = {{"a"}}}),
              HasSubstr("returned null"));
}

TEST(Criteria, AreNotNull) {
  for (const std::int64_t beams : {1, 2}) {
    DynamicCache cache(model().config());
    const auto eos = std::make_shared<EosTokenCriteria>(ids_tensor({{2}})[0]);
    const Inputs inputs{.input_ids = prompt(), .stopping_criteria = {eos, nullptr}};
    EXPECT_THAT(refusal<ValueError>([&] {
                  generate(model(), inputs, {.max_new_tokens = 2, .num_beams = beams}, &cache);
                }),
                HasSubstr("stopping_criteria[1] is null"));
    EXPECT_EQ(cache.get_seq_length(), 0);
  }
}

}  // namespace
}  // namespace kvcache
