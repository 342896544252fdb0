// A conversation in the terminal: chat CHECKPOINT_FOLDER [SESSION_FOLDER]. Ctrl-C ends a reply,
// Ctrl-D the conversation, which a session folder keeps for the next time.
#include <ATen/ops/full.h>
#include <kvcache/kvcache.h>

#include <atomic>
#include <csignal>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <string>

namespace {

std::atomic<bool> interrupted = false;

// Ends a reply at its next token, once Ctrl-C was pressed.
class Interrupt final : public kvcache::StoppingCriterion {
 public:
  at::Tensor complete(const kvcache::TokenRows& text) override {
    return at::full({text.ids.size(0)}, interrupted.load(), text.ids.options().dtype(at::kBool));
  }
};

// The next line that is not empty; false: there is none. Ctrl-C drops what was typed.
bool ask(std::string& line) {
  do {
    std::cin.clear();
    if (interrupted.exchange(false)) std::cout << '\n';
    std::cout << "> " << std::flush;
  } while ((!std::getline(std::cin, line) && interrupted) || (std::cin && line.empty()));
  interrupted = false;  // meant what was typed, not the reply
  return bool(std::cin);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) {
    return std::cerr << "usage: chat CHECKPOINT_FOLDER [SESSION_FOLDER]\n", 2;
  }
  struct sigaction on_interrupt = {};  // without SA_RESTART: a read gives up
  on_interrupt.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &on_interrupt, nullptr);

  const auto model = kvcache::load_model(argv[1]);
  auto config = kvcache::GenerationConfig::from_pretrained(argv[1]);
  config.max_new_tokens = 256;
  kvcache::ChatSession session(*model, kvcache::Tokenizer::from_folder(argv[1]),
                               kvcache::ChatTemplate::from_folder(argv[1]), {.generation = config});
  if (argc == 3 && exists(std::filesystem::path(argv[2]) / "messages.json")) session.load(argv[2]);

  const auto generator = kvcache::make_generator(std::random_device{}());
  for (std::string line; ask(line);) {
    try {
      const auto reply =
          session.send(line, {.on_text = [](auto text) { std::cout << text << std::flush; },
                              .stopping_criteria = {std::make_shared<Interrupt>()},
                              .generator = generator});
      std::cout << "\n[" << reply.reused_tokens << " of " << reply.prompt_tokens
                << " tokens reused, " << reply.new_tokens << " new]\n";
      if (argc == 3) session.save(argv[2]);
    } catch (const std::exception& error) {  // of this turn alone: the conversation goes on
      std::cerr << "\nerror: " << error.what() << '\n';
    }
  }
  std::cout << '\n';
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
