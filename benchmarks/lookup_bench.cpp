// What do drafts from the text itself save, where the answer repeats parts of it?
//
// lookup_bench CHECKPOINT_FOLDER [ROUNDS]: a text whose answer repeats much of it, in float32,
// greedy and by prompt lookup in turn. Prints new tokens a second of both, their ratio (median,
// least and greatest), the tokens that a forward pass gave, and whether the ids are equal.

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "kvcache/chat/chat_template.h"
#include "kvcache/generation/runner.h"
#include "kvcache/models/registry.h"
#include "kvcache/text/tokenizer.h"

namespace {

constexpr const char* kPrompt =
    "Here is a list of planets and moons.\n\n"
    "1. Mercury has no moon and is the planet next to the Sun.\n"
    "2. Venus has no moon and is the hottest planet.\n"
    "3. Earth has one moon, which is called the Moon.\n"
    "4. Mars has two moons, Phobos and Deimos.\n"
    "5. Jupiter has many moons, of which Io, Europa, Ganymede and Callisto are the largest.\n\n"
    "Repeat the list word by word, without changing anything.";

// Counts forward passes of a model.
class Counted final : public kvcache::LanguageModel {
 public:
  explicit Counted(const kvcache::LanguageModel& model)
      : LanguageModel(model.config(), model.dtype(), model.device()), model_(model) {}

  bool needs_whole_text(const kvcache::ForwardInput& input, kvcache::Cache& cache) const override {
    return model_.needs_whole_text(input, cache);
  }

  mutable std::int64_t passes = 0;

 protected:
  at::Tensor run(const kvcache::ForwardInput& input, kvcache::Cache* cache) const override {
    ++passes;
    return model_.forward(input, cache);
  }
  at::Tensor head(const at::Tensor& hidden) const override { return hidden; }

 private:
  const kvcache::LanguageModel& model_;
};

struct Run {
  at::Tensor sequences;
  double tokens_per_s = 0;
  double tokens_per_pass = 0;
};

Run run(const Counted& model, const at::Tensor& ids, const kvcache::GenerationConfig& config) {
  model.passes = 0;
  const kvcache::Output output = kvcache::generate(model, {.input_ids = ids}, config);
  const auto tokens = static_cast<double>(output.timings.decode_tokens);
  // The first pass is the prefill, whose token is not among those of the decoding.
  return {output.sequences, tokens / output.timings.decode_s,
          tokens / static_cast<double>(model.passes - 1)};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: lookup_bench CHECKPOINT_FOLDER [ROUNDS]\n", stderr);
    return 2;
  }
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 5;
  const auto model = kvcache::load_model(argv[1], {.dtype = at::kFloat});
  const auto tokenizer = kvcache::Tokenizer::from_folder(argv[1]);
  const std::vector<kvcache::ChatMessage> messages = {{.role = "user", .content = kPrompt}};
  const std::string text =
      kvcache::ChatTemplate::from_folder(argv[1]).render(messages, {.add_generation_prompt = true});
  const at::Tensor ids =
      at::tensor(tokenizer.encode(text, {.add_special_tokens = false}), at::kLong).unsqueeze(0);

  auto greedy = kvcache::GenerationConfig::from_pretrained(argv[1]);
  greedy.do_sample = false;
  greedy.max_new_tokens = 128;
  kvcache::GenerationConfig lookup = greedy;
  lookup.prompt_lookup_num_tokens = 8;

  const Counted counted(*model);
  run(counted, ids, greedy);  // warms up
  std::vector<double> plain_speeds, lookup_speeds, ratios;
  Run plain, drafted;
  bool equal = true;
  for (int round = 0; round < rounds; ++round) {
    plain = run(counted, ids, greedy);
    drafted = run(counted, ids, lookup);
    equal = equal && plain.sequences.equal(drafted.sequences);
    plain_speeds.push_back(plain.tokens_per_s);
    lookup_speeds.push_back(drafted.tokens_per_s);
    ratios.push_back(drafted.tokens_per_s / plain.tokens_per_s);
  }
  const auto [least, greatest] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("prompt of %lld tokens, %lld new ones, %d rounds\n",
              static_cast<long long>(ids.size(1)),
              static_cast<long long>(plain.sequences.size(1) - ids.size(1)), rounds);
  std::printf("greedy: %.1f tokens/s, %.2f a pass\n", median(plain_speeds), plain.tokens_per_pass);
  std::printf("prompt lookup: %.1f tokens/s, %.2f a pass\n", median(lookup_speeds),
              drafted.tokens_per_pass);
  std::printf("ratio %.2f [%.2f, %.2f], ids %s\n", median(ratios), *least, *greatest,
              equal ? "equal" : "NOT EQUAL");
  return equal ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
