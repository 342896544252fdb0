// What does a conversation save by going on with its cache?
//
// chat_bench CHECKPOINT_FOLDER [TURNS]: the same conversation twice, turn by turn: in one session,
// and each turn afresh. Prints the tokens of the prompt, those reused, and the time to the first
// new token of both.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/chat/chat_session.h"
#include "kvcache/models/registry.h"

namespace {

const std::vector<std::string> kTurns = {
    "My name is Ada, and I am writing a talk about caches. Tell me in a few sentences what a cache "
    "is.",
    "Which caches does a computer have?",
    "And what is the cache of a language model?",
    "How does it grow with the text?",
    "What would you leave out, if the talk had only five minutes?",
    "Thank you. What was my name again?"};

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: chat_bench CHECKPOINT_FOLDER [TURNS]\n", stderr);
    return 2;
  }
  const int turns = argc == 3 ? std::atoi(argv[2]) : static_cast<int>(kTurns.size());
  const auto model = kvcache::load_model(argv[1]);
  auto config = kvcache::GenerationConfig::from_pretrained(argv[1]);
  config.do_sample = false;
  config.max_new_tokens = 96;
  const auto session = [&] {
    return kvcache::ChatSession(*model, kvcache::Tokenizer::from_folder(argv[1]),
                                kvcache::ChatTemplate::from_folder(argv[1]),
                                {.generation = config});
  };

  std::puts("turn  prompt  reused  first token, s: session  afresh  afresh / session");
  kvcache::ChatSession chat = session();
  double all_session = 0, all_afresh = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const std::string& text = kTurns[static_cast<std::size_t>(turn) % kTurns.size()];
    kvcache::ChatSession fresh = session();
    for (const kvcache::ChatMessage& message : chat.messages()) fresh.add(message);
    const double afresh = fresh.send(text).timings.prefill_s;
    const kvcache::ChatReply reply = chat.send(text);
    const double held = reply.timings.prefill_s;
    std::printf("%4d  %6lld  %6lld  %23.3f  %6.3f  %16.1f\n", turn + 1,
                static_cast<long long>(reply.prompt_tokens),
                static_cast<long long>(reply.reused_tokens), held, afresh, share(afresh, held));
    all_session += held;
    all_afresh += afresh;
  }
  std::printf(" all                  %23.3f  %6.3f  %16.1f\n", all_session, all_afresh,
              share(all_afresh, all_session));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
