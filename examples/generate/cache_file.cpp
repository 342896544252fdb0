#include "generate/cache_file.h"

#include <c10/util/StringUtil.h>

#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "generate/output_file.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/mamba_cache.h"
#include "kvcache/cache/static_cache.h"
#include "kvcache/core/errors.h"

namespace generate_program {
namespace {

using kvcache::CacheFileInfo;
using kvcache::check_value;
using kvcache::GenerationConfig;
using kvcache::ValueError;

// What is wrong with the file to load, told with what would be right.
template <typename Call>
auto reading(const Call& call) {
  try {
    return call();
  } catch (const ValueError& error) {
    throw ValueError(c10::str("--load-cache: ", error.what(),
                              "; give a file that --save-cache wrote with this model"));
  }
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;  // a path that cannot be resolved is told of when it is written
  return std::filesystem::weakly_canonical(a, ignored) ==
         std::filesystem::weakly_canonical(b, ignored);
}

void check_outputs(const Arguments& arguments) {
  if (!arguments.save_cache) return;
  check_output_file("--save-cache", *arguments.save_cache);
  check_value(!arguments.save_logits || !same_file(*arguments.save_cache, *arguments.save_logits),
              "--save-cache and --save-logits name the same file, ", arguments.save_cache->string(),
              "; give them two");
}

std::unique_ptr<kvcache::LayeredCache> make_cache(const CacheFileInfo& info,
                                                  const std::vector<kvcache::LayerSpec>& layers) {
  if (info.kind == "dynamic") return std::make_unique<kvcache::DynamicCache>(layers);
  if (info.kind == "mamba") return std::make_unique<kvcache::MambaCache>(layers);
  check_value(info.kind == "static",
              "it holds a cache of a kind that this program does not make; it makes dynamic, "
              "static and mamba ones");
  return std::make_unique<kvcache::StaticCache>(
      layers, kvcache::StaticCacheOptions{.max_cache_len = info.max_cache_len});
}

std::unique_ptr<kvcache::Cache> make_cache(const CacheFileInfo& info,
                                           const kvcache::ModelConfig& model) {
  const std::vector<kvcache::LayerSpec> layers = model.layer_specs();
  if (info.parts.empty()) return make_cache(info, layers);
  return std::make_unique<kvcache::EncoderDecoderCache>(
      make_cache(info.parts.front(), layers),
      make_cache(info.parts.back(), kvcache::cross_attention_layers(layers)));
}

// As cache_implementation has it: of a pair of caches, that of the decoder's tokens.
const std::string& kind_of(const CacheFileInfo& info) {
  return info.parts.empty() ? info.kind : info.parts.front().kind;
}

}  // namespace

std::optional<CacheToLoad> check_cache_files(const Arguments& arguments,
                                             const GenerationConfig& given,
                                             const GenerationConfig& config) {
  const auto& first = arguments.load_cache ? arguments.load_cache : arguments.save_cache;
  check_value(!first || config.use_cache.value_or(true),
              arguments.load_cache ? "--load-cache " : "--save-cache ", first.value_or("").string(),
              " does not go with --no-cache (use_cache is false); leave one of them out");
  check_outputs(arguments);
  if (!arguments.load_cache) return std::nullopt;
  auto info = reading([&] { return kvcache::read_cache_file_info(*arguments.load_cache); });
  const std::string& kind = kind_of(info);
  check_value(given.cache_implementation.value_or(kind) == kind, "--load-cache ",
              arguments.load_cache->string(), " holds a cache of kind ", kind,
              ", but cache_implementation is ", given.cache_implementation.value_or(""),
              "; leave it out or give another file");
  return CacheToLoad{std::move(info), given.max_cache_len.value_or(0)};
}

std::unique_ptr<kvcache::Cache> load_cache(const Arguments& arguments, const CacheToLoad& file,
                                           const kvcache::LanguageModel& model, std::int64_t rows) {
  const std::string name = "--load-cache " + arguments.load_cache->string();
  check_value(file.info.batch == 0 || file.info.batch == rows, name, " holds a cache of ",
              file.info.batch, " rows, but ", rows,
              " sequences are to be made (prompts x num_return_sequences); they must be as many");
  std::unique_ptr<kvcache::Cache> loaded = reading([&] {
    std::unique_ptr<kvcache::Cache> cache = make_cache(file.info, model.config());
    kvcache::load_cache(
        *cache, *arguments.load_cache,
        {.fingerprint = model.fingerprint(), .dtype = model.dtype(), .devices = {model.device()}});
    check_value(cache->history().known(), "cache file ", arguments.load_cache->string(),
                " does not say which tokens it holds, so no prompt can be compared with them");
    return cache;
  });
  const std::int64_t room = loaded->capacity().value_or(file.least_room);
  check_value(file.least_room <= room, name, " holds a ", loaded->kind(), " cache of ", room,
              " tokens at most, but max_cache_len is ", file.least_room,
              "; leave it out or give another file");
  return loaded;
}

void save_cache(const Arguments& arguments, kvcache::Cache& cache,
                const kvcache::LanguageModel& model) {
  kvcache::save_cache(cache, *arguments.save_cache, {.fingerprint = model.fingerprint()});
}

}  // namespace generate_program
