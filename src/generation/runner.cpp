#include "kvcache/generation/runner.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "generation/beam_loop.h"
#include "generation/cache_choice.h"
#include "generation/config_checks.h"
#include "generation/prompt.h"
#include "generation/token_loop.h"

namespace kvcache {

Output Runner::generate(const Inputs& inputs, const GenerationConfig& config,
                        Cache* past_key_values) {
  detail::check_call(config, past_key_values);
  const detail::Prompt prompt = detail::make_prompt(inputs, config, model_, past_key_values);
  std::shared_ptr<Cache> made;
  if (config.use_cache.value_or(true) && past_key_values == nullptr) {
    made = detail::make_cache(config, model_.config(),
                              detail::room_for(config, prompt, prompt.longest), kept_);
    past_key_values = made.get();
  }
  Output output;
  if (config.num_beams.value_or(1) > 1) {
    output = detail::BeamLoop(model_, inputs, config, prompt, past_key_values).run();
  } else {
    detail::TokenLoop loop(model_, inputs, config, prompt, past_key_values);
    if (inputs.streamer != nullptr) inputs.streamer->begin();
    output = loop.run();
  }
  output.cache = std::move(made);
  return output;
}

Output generate(const LanguageModel& model, const Inputs& inputs, const GenerationConfig& config,
                Cache* past_key_values) {
  return Runner(model).generate(inputs, config, past_key_values);
}

}  // namespace kvcache
