#include "kvcache/cache/serialization.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "cache/cache_file_section.h"
#include "cache/cache_part.h"
#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/cache/layered_cache.h"
#include "kvcache/core/errors.h"
#include "kvcache/io/safetensors.h"

namespace kvcache {

namespace {

using nlohmann::json;

using detail::kEncoderSide;
using detail::kOwnSide;

EncoderDecoderCache* as_pair(Cache& cache) { return dynamic_cast<EncoderDecoderCache*>(&cache); }

LayeredCache& as_layered(Cache& cache) {
  auto* layered = dynamic_cast<LayeredCache*>(&cache);
  check_value(layered != nullptr, "a cache of kind '", cache.kind(),
              "' has no form in a file: it is neither made of layers nor a pair of such caches");
  return *layered;
}

// What an encoder's side must be to go with a decoder's.
void check_pair(const detail::CacheFileSection& file, const CacheFile::Loading& decoder,
                const CacheFile::Loading& encoder) {
  if (encoder.history().seen() == 0) return;
  check_value(decoder.batch() % encoder.batch() == 0, file.name(), ": the decoder's ",
              decoder.batch(), " rows are no multiple of the encoder's ", encoder.batch());
  const at::Tensor valid = encoder.history().valid();
  check_value(valid.any(1).all().item<bool>(), file.name(),
              ": a row of the encoder's holds padding alone");
}

}  // namespace

void save_cache(Cache& cache, const std::filesystem::path& path, const CacheFileOptions& options) {
  CacheFile::Tensors tensors;
  json header;
  if (EncoderDecoderCache* pair = as_pair(cache)) {
    header[kOwnSide] =
        CacheFile::write(pair->self_attention_cache(), c10::str(kOwnSide, "."), tensors);
    header[kEncoderSide] =
        CacheFile::write(pair->cross_attention_cache(), c10::str(kEncoderSide, "."), tensors);
  } else {
    header = CacheFile::write(as_layered(cache), "", tensors);
  }
  header["version"] = detail::kCacheFileVersion;
  header["kind"] = std::string(cache.kind());
  header["fingerprint"] = options.fingerprint;
  save_safetensors(
      path, tensors,
      {{detail::kCacheFileHeader, header.dump(-1, ' ', false, json::error_handler_t::replace)}});
}

void load_cache(Cache& cache, const std::filesystem::path& path, const CacheFileOptions& options) {
  const auto file = detail::CacheFileSection::open(path);
  const std::string kind = file.text("kind");
  check_value(kind == cache.kind(), file.name(), " holds a cache of kind '", kind,
              "', but this one is of kind '", cache.kind(), "'");
  const std::string fingerprint = file.text("fingerprint");
  check_value(options.fingerprint.empty() || fingerprint == options.fingerprint, file.name(),
              " was made with the model '", fingerprint, "', but this model is '",
              options.fingerprint, "'");
  EncoderDecoderCache* pair = as_pair(cache);
  if (pair == nullptr) {
    CacheFile::Loading loading(as_layered(cache), file, options);
    loading.read();
    file.check_all_taken();
    loading.fill();
    loading.apply();
    return;
  }
  CacheFile::Loading decoder(pair->self_attention_cache(), file.part(kOwnSide), options);
  CacheFile::Loading encoder(pair->cross_attention_cache(), file.part(kEncoderSide), options);
  decoder.read();
  encoder.read();
  file.check_all_taken();
  check_pair(file, decoder, encoder);
  decoder.fill();
  encoder.fill();
  decoder.apply();
  encoder.apply();
}

}  // namespace kvcache
