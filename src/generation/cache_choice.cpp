#include "generation/cache_choice.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "generation/cache_config.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/quantized_cache.h"
#include "kvcache/cache/static_cache.h"

namespace kvcache::detail {
namespace {

// Room that a new growing cache gets beyond its prompt: enough for most answers, so that it grows
// once, and little beside a model's weights.
constexpr std::int64_t kReservedNewTokens = 1024;

using Names = std::pair<std::string_view, std::string_view>;

// Under each name its kind. Layers say themselves whether they have a window, so the names of old
// that said it mean the same as those without.
constexpr std::array<Names, 10> kKinds = {{
    {"dynamic", "dynamic"},
    {"static", "static"},
    {"offloaded", "offloaded"},
    {"offloaded_static", "offloaded_static"},
    {"quantized", "quantized"},
    {"sliding_window", "static"},
    {"hybrid", "static"},
    {"hybrid_chunked", "static"},
    {"offloaded_hybrid", "offloaded_static"},
    {"offloaded_hybrid_chunked", "offloaded_static"},
}};

std::unique_ptr<Cache> make_static_cache(const ModelConfig& model, const CacheRoom& room) {
  const std::vector<LayerSpec> layers = model.layer_specs();
  const auto made = [](const std::vector<LayerSpec>& of, std::int64_t tokens) {
    return std::make_unique<StaticCache>(of, StaticCacheOptions{.max_cache_len = tokens});
  };
  if (!model.seq2seq) return made(layers, room.tokens);
  return std::make_unique<EncoderDecoderCache>(
      made(layers, room.tokens), made(cross_attention_layers(layers), room.encoder_tokens));
}

// A growing cache of the decoder's layers, with room; of encoder-decoder models with another one
// for an encoder's output, which is read whole in every step and stays as it is.
std::unique_ptr<Cache> with_room(std::unique_ptr<LayeredCache> cache, const ModelConfig& model,
                                 std::int64_t room) {
  cache->reserve(room);
  if (!model.seq2seq) return cache;
  return std::make_unique<EncoderDecoderCache>(
      std::move(cache),
      std::make_unique<DynamicCache>(cross_attention_layers(model.layer_specs())));
}

}  // namespace

std::string_view cache_kind(const GenerationConfig& config) {
  const std::string name = config.cache_implementation.value_or("dynamic");
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const Names& names) { return names.first == name; });
  return kind == kKinds.end() ? std::string_view() : kind->second;
}

CacheRoom room_for(const GenerationConfig& config, const Prompt& prompt, std::int64_t longest) {
  const std::int64_t held = longest - 1;  // the last token is never fed
  const std::int64_t tokens = cache_kind(config) == "static"
                                  ? std::max(held, config.max_cache_len.value_or(0))
                                  : std::min(held, prompt.tokens() + kReservedNewTokens - 1);
  return {.rows = prompt.rows(),
          .tokens = tokens,
          .encoder_tokens = prompt.encoder ? prompt.encoder->input_ids.size(1) : 0};
}

std::unique_ptr<Cache> new_cache(const GenerationConfig& config, const ModelConfig& model,
                                 const CacheRoom& room) {
  const std::string_view kind = cache_kind(config);
  if (kind == "static") return make_static_cache(model, room);
  const std::vector<LayerSpec> layers = model.layer_specs();
  if (kind == "quantized") {
    return with_room(std::make_unique<QuantizedCache>(
                         layers, QuantizedCacheOptions{.config = quantized_config(config)}),
                     model, room.tokens);
  }
  return with_room(std::make_unique<DynamicCache>(layers), model, room.tokens);
}

std::shared_ptr<Cache> make_cache(const GenerationConfig& config, const ModelConfig& model,
                                  const CacheRoom& room, KeptCaches& kept) {
  const auto make = [&] { return new_cache(config, model, room); };
  return cache_kind(config) == "static" ? kept.take(room, make) : make();
}

}  // namespace kvcache::detail
