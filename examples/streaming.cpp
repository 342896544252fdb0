// Text as it is made, and what ends it: streaming CHECKPOINT_FOLDER PROMPT [STOP_STRING...].
#include <ATen/ops/tensor.h>
#include <kvcache/kvcache.h>

#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

// Ends a row at a token that it has had before.
class Repetition final : public kvcache::StoppingCriterion {
 public:
  at::Tensor complete(const kvcache::TokenRows& text) override {
    const auto ids = text.right_aligned();  // without padding: the newest tokens come last
    const int64_t before = text.length() - 1;
    return ids.narrow(1, 0, before).eq(ids.narrow(1, before, 1)).any(1);
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    return std::cerr << "usage: streaming CHECKPOINT_FOLDER PROMPT [STOP_STRING...]\n", 2;
  }
  const auto model = kvcache::load_model(argv[1]);
  const auto tokenizer = kvcache::Tokenizer::from_folder(argv[1]);
  auto config = kvcache::GenerationConfig::from_pretrained(argv[1]);  // with its end tokens
  config.do_sample = false;
  config.max_new_tokens = 24;
  config.max_time = 60;  // seconds
  config.stop_strings = std::vector<std::string>(argv + 3, argv + argc);
  kvcache::Inputs inputs{.input_ids = at::tensor(tokenizer.encode(argv[2]), at::kLong).unsqueeze(0),
                         .text = kvcache::running_text(tokenizer)};  // for the stop strings

  // Text, as soon as a character is whole, without end tokens.
  kvcache::TextStreamer text(
      inputs.text, [](auto piece) { std::cout << piece << std::flush; },
      config.eos_token_id.value_or(std::vector<int64_t>{}));
  inputs.streamer = &text;
  const auto output = kvcache::generate(*model, inputs, config);
  std::cout << "\n[" << output.sequences.size(1) - inputs.input_ids.size(1) << " tokens]\n";

  // Tokens, one of each row a step; and an end of one's own beside the config's.
  auto with_end = inputs;
  with_end.stopping_criteria = {std::make_shared<Repetition>()};
  kvcache::CallbackStreamer tokens(
      [](const at::Tensor& step) { std::cout << step[0].item<int64_t>() << ' '; });
  with_end.streamer = &tokens;
  kvcache::generate(*model, with_end, config);
  std::cout << "[at a repetition]\n";

  // Text that is pulled, while a thread of the stream's makes it.
  kvcache::TextStream stream(inputs.text, [&](kvcache::Streamer& streamer) {
    inputs.streamer = &streamer;
    return kvcache::generate(*model, inputs, config);
  });
  for (const std::string& piece : stream) std::cout << piece << '|' << std::flush;
  const bool same = stream.output().sequences.equal(output.sequences);
  std::cout << "\n[" << (same ? "the same" : "another") << " text]\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
