// Drafts of random texts by random models: the text, the cache and the passes of decoding token by
// token without a cache, whatever the layers keep and whatever drafts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/generation/runner.h"
#include "kvcache/generation/sampler.h"
#include "tests/support/checkpoints.h"
#include "tests/support/drafts.h"
#include "tests/support/ended_rows.h"
#include "tests/support/sweep.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_models.h"

namespace kvcache::testing {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kMoreTokens = 3;  // that each cache is gone on with
constexpr std::int64_t kSeed = 11;       // of sampled texts

// With few tokens, so that texts repeat themselves and drafts are right now and then.
struct RandomModel {
  std::string kind;     // of layers
  std::uint64_t seed;   // of weights
  std::int64_t vocab;   // tokens
  std::int64_t window;  // tokens
  auto operator<=>(const RandomModel&) const = default;
};

const CausalLM& random_model(const RandomModel& name) {
  static std::map<RandomModel, std::unique_ptr<CausalLM>> made;
  std::unique_ptr<CausalLM>& model = made[name];
  if (!model) {
    ModelConfig config = tiny_config(name.kind, name.window);
    config.vocab_size = name.vocab;
    model = tiny_model_of(config, tiny_weights(config, name.seed));
  }
  return *model;
}

const std::vector<std::string> kKinds = {"full", "sliding", "chunked", "mixed"};

struct Kind {
  std::string model;  // one of kKinds, or a checkpoint
  std::string cache;  // "dynamic" or "static"

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) {
    return out << kind.model << "_" << kind.cache;
  }
};

struct Case {
  const CausalLM* model;
  const CausalLM* assistant;
  Ids prompt;
  GenerationConfig plain, lookup, assisted;
};

// Case `index` of a kind: 1 + index % 24 new tokens, all else drawn.
Case make_case(const Kind& kind, std::int64_t index) {
  std::mt19937_64 random(static_cast<std::uint64_t>(index));
  const auto draw = [&](std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(random() % std::uint64_t(last - first + 1));
  };
  const std::int64_t alphabet = draw(2, 6);
  Case made{};
  made.plain.max_new_tokens = 1 + index % 24;
  std::int64_t vocab = alphabet;
  if (std::find(kKinds.begin(), kKinds.end(), kind.model) != kKinds.end()) {
    const auto seed = static_cast<std::uint64_t>(draw(1, 4));
    made.model = &random_model({kind.model, seed, vocab, draw(2, 6)});
  } else {
    made.model = &checkpoint(kind.model);
    vocab = made.model->config().vocab_size;
    made.plain.suppress_tokens = from_to(alphabet, vocab - 1);
  }
  const std::string other = kKinds[std::size_t(draw(0, 3))];
  const bool own_drafts = draw(0, 2) == 0;
  made.assistant = own_drafts ? made.model : &random_model({other, 9, vocab, draw(2, 6)});
  for (std::int64_t left = draw(1, 14); left > 0; --left) {
    made.prompt.push_back(draw(0, alphabet - 1));
  }
  made.lookup = made.assisted = made.plain;
  made.lookup.prompt_lookup_num_tokens = draw(1, 6);
  made.lookup.max_matching_ngram_size = draw(1, 4);
  made.assisted.num_assistant_tokens = draw(1, 6);
  made.assisted.assistant_confidence_threshold = 0;
  return made;
}

// The assistant's best tokens behind a text, without a cache.
Draft guessed(const Case& of) {
  return [&of](const Ids& text, std::int64_t most) {
    const std::int64_t tokens = std::min(most, *of.assisted.num_assistant_tokens);
    return alone(*of.assistant, text, tokens);
  };
}

class DraftsOfRandomModels : public ::testing::TestWithParam<Kind> {
 protected:
  struct Made {
    at::Tensor text;  // int64 [1, tokens]
    at::Tensor more;  // and what the cache was gone on with
    at::Tensor random_state;
    std::vector<std::int64_t> fed;  // tokens of each pass that made the text
  };

  // The text, what follows it greedily and how it was made, over a cache unless the config has
  // none.
  Made run(const Case& of, GenerationConfig config, bool sample,
           const LanguageModel* assistant = nullptr) const {
    const NotingModel model(*of.model);
    std::unique_ptr<Cache> cache;
    if (config.use_cache.value_or(true)) {
      cache = cache_of(of.model->config());
    }
    Inputs inputs{.input_ids = ids_tensor({of.prompt}), .assistant_model = assistant};
    config.do_sample = sample;
    inputs.generator = make_generator(kSeed);
    Made made;
    made.text = generate(model, inputs, config, cache.get()).sequences;
    made.fed = model.tokens;
    made.random_state = inputs.generator->get_state();
    const std::int64_t held = made.text.size(1) - 1;
    if (cache) {
      EXPECT_EQ(cache->get_seq_length(), held);
      EXPECT_TRUE(cache->history().ids().equal(made.text.narrow(1, 0, held)));
    }
    GenerationConfig more{.max_new_tokens = kMoreTokens,
                          .suppress_tokens = config.suppress_tokens,
                          .use_cache = config.use_cache};
    made.more = generate(model, {.input_ids = made.text}, more, cache.get()).sequences;
    return made;
  }

  // Every way of drafting makes what is made without drafts and without a cache, in as many passes
  // as the drafts' tokens let it.
  void check(const Case& of, bool sample) {
    GenerationConfig uncached = of.plain;
    uncached.use_cache = false;
    const Made expected = run(of, uncached, sample);
    const Ids text = numbers_of(expected.text[0]);
    const auto expect = [&](const char* what, const Made& made, const Draft& draft) {
      SCOPED_TRACE(what);
      EXPECT_TRUE(made.text.equal(expected.text)) << made.text << expected.text;
      EXPECT_TRUE(made.more.equal(expected.more)) << made.more << expected.more;
      EXPECT_TRUE(made.random_state.equal(expected.random_state));
      EXPECT_EQ(made.fed, fed_with_drafts(text, std::int64_t(of.prompt.size()), draft));
      for (std::size_t i = 1; i < made.fed.size(); ++i) drafted_ += made.fed[i] - 1;
      accepted_ += *of.plain.max_new_tokens - std::int64_t(made.fed.size());
    };
    expect("lookup", run(of, of.lookup, sample),
           looked_up(*of.lookup.prompt_lookup_num_tokens, *of.lookup.max_matching_ngram_size));
    expect("assisted", run(of, of.assisted, sample, of.assistant), guessed(of));
    // Settings that end drafts early change nothing else.
    GenerationConfig unsure = of.assisted;
    unsure.assistant_confidence_threshold = 0.4;
    unsure.num_assistant_tokens_schedule = "heuristic";
    const Made made = run(of, unsure, sample, of.assistant);
    EXPECT_TRUE(made.text.equal(expected.text));
    EXPECT_TRUE(made.more.equal(expected.more));
  }

  std::unique_ptr<Cache> cache_of(const ModelConfig& config) const {
    if (GetParam().cache == "dynamic") return std::make_unique<DynamicCache>(config);
    return std::make_unique<StaticCache>(
        config, StaticCacheOptions{.max_cache_len = 14 + 24 + kMoreTokens - 1});
  }

  std::int64_t drafted_ = 0, accepted_ = 0;  // tokens
};

TEST_P(DraftsOfRandomModels, F38F40MakeTheTextOfDecodingTokenByToken) {
  // 7 and 24 have no common divisor: few cases are of many lengths, and 24 of all.
  const std::int64_t cases = sweep_count(7, 24 * 5);
  for (std::int64_t i = 0; i < cases; ++i) {
    const std::int64_t index = i * 7 + 5;
    const Case of = make_case(GetParam(), index);
    SCOPED_TRACE(c10::str("case ", index, ": prompt ", of.prompt, ", ", *of.plain.max_new_tokens,
                          " new tokens"));
    check(of, /*sample=*/false);
    check(of, /*sample=*/true);
  }
  EXPECT_GT(accepted_, 0);
  EXPECT_GT(drafted_, accepted_);
}

INSTANTIATE_TEST_SUITE_P(
    All, DraftsOfRandomModels,
    ::testing::Values(Kind{"full", "dynamic"}, Kind{"full", "static"}, Kind{"sliding", "dynamic"},
                      Kind{"sliding", "static"}, Kind{"chunked", "dynamic"},
                      Kind{"chunked", "static"}, Kind{"mixed", "dynamic"}, Kind{"mixed", "static"},
                      Kind{"gemma3_text", "dynamic"}, Kind{"gemma3_text", "static"},
                      Kind{"lfm2", "dynamic"}, Kind{"lfm2", "static"}, Kind{"mamba2", "dynamic"},
                      Kind{"mamba2", "static"}, Kind{"jamba", "dynamic"}, Kind{"jamba", "static"}),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace kvcache::testing
