// Where settings come from, chance, and a processor of one's own: sampling CHECKPOINT_FOLDER.
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <limits>
#include <memory>
#include <string>

namespace {

// Never the same token twice in a row.
class NotTwice final : public kvcache::LogitsProcessor {
 public:
  // Scores [rows, vocabulary] of what may follow the texts, whose newest tokens come last.
  at::Tensor process(const kvcache::TokenRows& text, const at::Tensor& scores) override {
    const auto newest = text.ids.narrow(1, text.length() - 1, 1);
    return scores.scatter(1, newest, -std::numeric_limits<double>::infinity());
  }
};

void show(const std::string& what, const at::Tensor& sequences) {
  for (int64_t row = 0; row < sequences.size(0); ++row) {
    std::cout << what << ':';
    for (int64_t i = 0; i < sequences.size(1); ++i) {
      std::cout << ' ' << sequences[row][i].item<int64_t>();
    }
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: sampling CHECKPOINT_FOLDER\n", 2;
  const auto model = kvcache::load_model(argv[1]);
  kvcache::Inputs inputs{.input_ids = at::tensor({5L, 8L, 9L, 10L}, at::kLong).unsqueeze(0)};

  // The checkpoint's settings, a file's over them, and the program's over both.
  const auto file = kvcache::GenerationConfig::from_json(
      R"({"do_sample": true, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 40})");
  const auto config = kvcache::GenerationConfig{.max_new_tokens = 12, .top_k = 0}.over(file).over(
      kvcache::GenerationConfig::from_pretrained(argv[1]));

  for (const uint64_t seed : {1U, 2U, 1U}) {
    inputs.generator = kvcache::make_generator(seed);
    const auto output = kvcache::generate(*model, inputs, config);
    show("seed " + std::to_string(seed), output.sequences);
  }

  // The generator has moved on. Several texts of a prompt are the rows of one call.
  const auto several = kvcache::GenerationConfig{.num_return_sequences = 3}.over(config);
  show("one of three", kvcache::generate(*model, inputs, several).sequences);

  const auto greedy = kvcache::GenerationConfig{.do_sample = false}.over(config);
  show("greedy", kvcache::generate(*model, inputs, greedy).sequences);
  inputs.logits_processors = {std::make_shared<NotTwice>()};
  show("never twice", kvcache::generate(*model, inputs, greedy).sequences);
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
