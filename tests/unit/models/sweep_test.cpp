// Cached equals uncached over every small way to feed a text: the model and its kinds of layers,
// the kind of cache, the prompt's length, its pieces, left padding, and a rollback, of all of the
// prompt too, with the same tokens fed again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/models/registry.h"
#include "tests/support/any_layers_model.h"
#include "tests/support/fed_layer.h"
#include "tests/support/sweep.h"
#include "tests/support/tensors.h"

namespace kvcache::testing {
namespace {

struct Feeding {
  std::int64_t prompt, piece, pads, crop;
};

std::vector<Feeding> all_feedings() {
  std::vector<Feeding> all;
  for (std::int64_t prompt = 1; prompt <= 12; ++prompt) {
    for (std::int64_t piece = 1; piece <= 6; ++piece) {
      for (std::int64_t pads = 0; pads <= 6; ++pads) {
        for (std::int64_t crop = 0; crop <= std::min<std::int64_t>(3, prompt); ++crop) {
          all.push_back({prompt, piece, pads, crop});
        }
      }
    }
  }
  return all;
}

// A seeded sample by default.
std::vector<Feeding> chosen_feedings() {
  const std::vector<Feeding> all = all_feedings();
  std::vector<Feeding> chosen;
  std::mt19937 random(20240611);
  const auto full = static_cast<std::int64_t>(all.size());
  std::sample(all.begin(), all.end(), std::back_inserter(chosen), sweep_count(150, full), random);
  return chosen;
}

constexpr std::int64_t kLongest = 12 + 6;     // tokens of a text and its padding
constexpr std::int64_t kEncoderRoom = 5 + 3;  // of an encoder's input, and free columns

using MakeCache = std::function<std::unique_ptr<LayeredCache>(const std::vector<LayerSpec>&)>;

std::unique_ptr<LayeredCache> make_static(const std::vector<LayerSpec>& layers,
                                          std::int64_t record_slack) {
  const StaticCacheOptions options{.max_cache_len = kLongest, .record_slack = record_slack};
  return std::make_unique<StaticCache>(layers, options);
}

// Sliding layers of a kind that was registered.
std::unique_ptr<LayeredCache> make_own_kind(std::vector<LayerSpec> layers) {
  DynamicCacheOptions options;
  add_layer<FedLayer>(options.layers, kFed);
  for (LayerSpec& layer : layers) {
    if (layer.type == kSlidingAttention) layer.type = kFed;
  }
  return std::make_unique<DynamicCache>(layers, options);
}

// The kinds of caches that models are fed through, where their layers may lie in them: a new one is
// a line here. Of a model with an encoder, for its decoder's own tokens.
std::map<std::string, MakeCache> cache_makers() {
  using Layers = std::vector<LayerSpec>;
  return {
      {"Dynamic", [](const Layers& layers) { return std::make_unique<DynamicCache>(layers); }},
      {"Static", [](const Layers& layers) { return make_static(layers, 0); }},
      {"StaticSlack", [](const Layers& layers) { return make_static(layers, 3); }},
      {"StaticPair", [](const Layers& layers) { return make_static(layers, 0); }},
      {"OwnKind", make_own_kind},
      {"Mamba", [](const Layers& layers) { return std::make_unique<MambaCache>(layers); }},
  };
}

std::unique_ptr<LayeredCache> make_encoder_side(const std::string& kind,
                                                const std::vector<LayerSpec>& decoder) {
  const std::vector<LayerSpec> layers = cross_attention_layers(decoder);
  if (kind != "StaticPair") return std::make_unique<DynamicCache>(layers);
  return std::make_unique<StaticCache>(layers, StaticCacheOptions{.max_cache_len = kEncoderRoom});
}

std::unique_ptr<Cache> make_cache(const std::string& kind, const LanguageModel& model) {
  const std::vector<LayerSpec> layers = layers_of(model);
  std::unique_ptr<LayeredCache> own = cache_makers().at(kind)(layers);
  if (!model.is_encoder_decoder()) return own;
  return std::make_unique<EncoderDecoderCache>(std::move(own), make_encoder_side(kind, layers));
}

const std::filesystem::path kParity = KVCACHE_TEST_DATA_DIR "/parity";

std::filesystem::path folder_of(const std::string& name) {
  const std::filesystem::path causal = kParity / "checkpoints" / name;
  return std::filesystem::exists(causal) ? causal : kParity / "seq2seq_checkpoints" / name;
}

// Models with wide random weights: one a kind of layers, and the checkpoints of every family.
std::vector<std::string> model_names() {
  std::vector<std::string> names{"full", "sliding", "chunked", "mixed"};
  for (const auto& [kind, layers] : kinds_of_own_layers()) names.push_back(kind);
  const auto kinds = std::ptrdiff_t(names.size());
  for (const char* folder : {"checkpoints", "seq2seq_checkpoints"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kParity / folder)) {
      const ModelConfig config = ModelConfig::from_folder(entry.path());
      if (config.dtype.value_or(at::kFloat) == at::kFloat) {
        names.push_back(entry.path().filename().string());
      }
    }
  }
  std::sort(names.begin() + kinds, names.end());
  return names;
}

std::unique_ptr<LanguageModel> model_named(const std::string& name) {
  const std::filesystem::path folder = folder_of(name);
  if (std::filesystem::exists(folder)) return load_language_model(folder);
  return tiny_language_model(name);
}

// What a model's encoder reads, if it has one.
std::optional<EncoderInput> encoder_of(const LanguageModel& model) {
  if (!model.is_encoder_decoder()) return std::nullopt;
  return EncoderInput{ids_tensor({{15, 16, 17, 18, 19}}), ids_tensor({{1, 1, 1, 1, 0}})};
}

// The last logits of a text that is fed as `how` says: padded, in pieces, its last tokens taken
// back and fed again. Records only where something is taken back.
at::Tensor fed(const LanguageModel& model, Cache& cache, const at::Tensor& text,
               const Feeding& how) {
  const at::Tensor ids = at::cat({at::full({1, how.pads}, 40, at::kLong), text}, 1);
  const at::Tensor real = at::ones_like(ids);
  real.narrow(1, 0, how.pads).fill_(0);
  const std::int64_t length = ids.size(1);
  if (how.crop > 0) cache.activate_past_recording();
  at::Tensor logits;
  const auto feed = [&](std::int64_t from) {
    for (std::int64_t at = from; at < length; at += how.piece) {
      const std::int64_t count = std::min(how.piece, length - at);
      logits = model.forward({.input_ids = ids.narrow(1, at, count),
                              .attention_mask = real.narrow(1, at, count),
                              .logits_to_keep = 1,
                              .encoder = encoder_of(model)},
                             &cache);
    }
  };
  feed(0);
  if (how.crop > 0) {
    cache.crop(-how.crop);
    feed(length - how.crop);
  }
  return logits.select(1, 0);
}

class CachedEqualsUncached : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
};

TEST_P(CachedEqualsUncached, HoweverTheTextIsFed) {
  const auto& [model_name, cache_name] = GetParam();
  const auto model = model_named(model_name);
  const at::Tensor text = ids_tensor({{5, 6, 7, 8, 9, 10, 11, 7, 8, 12, 13, 14}});
  std::vector<at::Tensor> uncached;  // last logits of every length
  for (std::int64_t n = 1; n <= 12; ++n) {
    uncached.push_back(
        model->forward({.input_ids = text.narrow(1, 0, n), .encoder = encoder_of(*model)})
            .select(1, -1));
  }
  for (const Feeding& how : chosen_feedings()) {
    const std::unique_ptr<Cache> cache = make_cache(cache_name, *model);
    ASSERT_LE(difference(fed(*model, *cache, text.narrow(1, 0, how.prompt), how),
                         uncached[static_cast<std::size_t>(how.prompt - 1)]),
              1e-4)
        << "prompt " << how.prompt << ", pieces of " << how.piece << ", " << how.pads
        << " pads, crop " << how.crop;
  }
}

using Pair = std::tuple<std::string, std::string>;

bool has_keys(const LayerSpec& layer) {
  return layer.type != kLinearAttention && layer.type != kConvolution && layer.type != kDummy;
}

bool is_sliding(const LayerSpec& layer) { return layer.type == kSlidingAttention; }

// Whether a model's layers may lie in a kind of cache, and make it another than the others.
bool goes_with(const std::string& cache, const LanguageModel& model) {
  const std::vector<LayerSpec> layers = layers_of(model);
  if (cache == "Mamba") return std::none_of(layers.begin(), layers.end(), has_keys);
  if (cache == "OwnKind") return std::any_of(layers.begin(), layers.end(), is_sliding);
  return cache != "StaticPair" || model.is_encoder_decoder();
}

std::vector<Pair> pairs() {
  std::vector<Pair> all;
  for (const std::string& name : model_names()) {
    const std::unique_ptr<LanguageModel> model = model_named(name);
    for (const auto& [cache, make] : cache_makers()) {
      if (goes_with(cache, *model)) all.emplace_back(name, cache);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Kinds, CachedEqualsUncached, ::testing::ValuesIn(pairs()),
                         [](const auto& suite) {
                           return std::get<0>(suite.param) + "_" + std::get<1>(suite.param);
                         });

}  // namespace
}  // namespace kvcache::testing
