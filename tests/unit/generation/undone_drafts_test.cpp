// What throws while a draft is being checked leaves no guess in the cache.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/streamer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/failing_processor.h"
#include "tests/support/tensors.h"

namespace kvcache {
namespace {

using testing::checkpoint;
using testing::FailingProcessor;

// The models' own drafts are right and those of others are mostly wrong.
class UndoneDrafts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    whole_ = generate(model_, {.input_ids = prompt_}, {.max_new_tokens = 12}).sequences;
    config_.num_assistant_tokens = 4;
    config_.assistant_confidence_threshold = 0;
    inputs_.assistant_model = &checkpoint(GetParam());
  }

  // Generates until something throws; the cache then holds no more than the text, and goes on to
  // the text that nothing interrupts.
  void expect_no_guesses(Inputs inputs) {
    DynamicCache cache(model_.config());
    EXPECT_THROW(generate(model_, inputs, config_, &cache), std::runtime_error);
    const std::int64_t held = cache.get_seq_length();
    EXPECT_GE(held, 9);
    EXPECT_TRUE(cache.history().ids().equal(whole_.narrow(1, 0, held)));
    const Inputs rest{.input_ids = whole_.narrow(1, held, 1), .continuation = true};
    const at::Tensor more = generate(model_, rest, {.max_new_tokens = 20 - held}, &cache).sequences;
    EXPECT_TRUE(more.equal(whole_.narrow(1, held, 21 - held))) << more << whole_;
  }

  const CausalLM& model_ = checkpoint("llama");
  at::Tensor prompt_ = testing::ids_tensor({{3, 4, 5, 3, 4, 5, 3, 4, 5}});
  at::Tensor whole_;
  GenerationConfig config_{.max_new_tokens = 12};
  Inputs inputs_{.input_ids = prompt_};
};

TEST_P(UndoneDrafts, AProcessorThatThrows) {
  for (int call = 1; call <= 11; ++call) {
    SCOPED_TRACE(call);
    Inputs inputs = inputs_;
    inputs.logits_processors = {std::make_shared<FailingProcessor>(call)};
    expect_no_guesses(inputs);
  }
}

TEST_P(UndoneDrafts, AStreamerThatThrows) {
  for (int call = 2; call <= 11; ++call) {
    SCOPED_TRACE(call);
    int calls = 0;
    CallbackStreamer streamer([&](const at::Tensor&) {
      if (++calls == call) throw std::runtime_error("a streamer failed");
    });
    Inputs inputs = inputs_;
    inputs.streamer = &streamer;
    expect_no_guesses(inputs);
  }
}

INSTANTIATE_TEST_SUITE_P(Assistants, UndoneDrafts, ::testing::Values("llama", "mistral"));

}  // namespace
}  // namespace kvcache
