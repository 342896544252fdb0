#include "kvcache/generation/runner.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "generation/configured.h"
#include "generation/prompt.h"
#include "generation/token_loop.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/core/errors.h"

namespace kvcache {
namespace {

// Room that a new cache gets beyond its prompt: enough for most answers, so that it grows once, and
// little beside a model's weights.
constexpr std::int64_t kReservedNewTokens = 1024;

// For a prompt and a text of `longest` tokens, of which the last is never fed.
std::unique_ptr<Cache> make_cache(const GenerationConfig& config, const ModelConfig& model,
                                  const detail::Prompt& prompt, std::int64_t longest) {
  const std::vector<LayerSpec> layers = model.layer_specs();
  const std::vector<LayerSpec> cross = cross_attention_layers(layers);
  if (config.cache_implementation.value_or("dynamic") == "static") {
    const std::int64_t most = std::max(longest - 1, config.max_cache_len.value_or(0));
    auto cache = std::make_unique<StaticCache>(layers, StaticCacheOptions{.max_cache_len = most});
    if (!prompt.encoder) return cache;
    const std::int64_t read = prompt.encoder->input_ids.size(1);
    return std::make_unique<EncoderDecoderCache>(
        std::move(cache),
        std::make_unique<StaticCache>(cross, StaticCacheOptions{.max_cache_len = read}));
  }
  auto cache = std::make_unique<DynamicCache>(layers);
  cache->reserve(std::min(longest, prompt.tokens() + kReservedNewTokens) - 1);
  if (!prompt.encoder) return cache;
  return std::make_unique<EncoderDecoderCache>(std::move(cache),
                                               std::make_unique<DynamicCache>(cross));
}

}  // namespace

Output Runner::generate(const Inputs& inputs, const GenerationConfig& config,
                        Cache* past_key_values) {
  config.validate();
  const bool use_cache = config.use_cache.value_or(true);
  check_value(use_cache || past_key_values == nullptr,
              "past_key_values was passed, but use_cache is false; drop one of them");
  const detail::Prompt prompt = detail::make_prompt(inputs, config, model_, past_key_values);
  std::unique_ptr<Cache> made;
  if (use_cache && past_key_values == nullptr) {
    const std::int64_t longest =
        detail::max_length(config, prompt.tokens(), model_.config().max_position_embeddings);
    made = make_cache(config, model_.config(), prompt, longest);
    past_key_values = made.get();
  }
  Output output = detail::TokenLoop(model_, inputs, config, prompt, past_key_values).run();
  output.cache = std::move(made);
  return output;
}

Output generate(const LanguageModel& model, const Inputs& inputs, const GenerationConfig& config,
                Cache* past_key_values) {
  return Runner(model).generate(inputs, config, past_key_values);
}

}  // namespace kvcache
