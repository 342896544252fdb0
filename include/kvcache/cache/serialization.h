// Saves a cache to one file and loads it again, also in another process: a safetensors file whose
// metadata say what the cache is. Loading checks everything first and then replaces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/cache.h"

namespace kvcache {

struct CacheFileOptions {
  // Of the model that filled the cache, LanguageModel::fingerprint(). save: noted in the file,
  // unless empty. load: must be the file's, unless empty.
  std::string fingerprint = {};
  // load: the keys, values and inputs of convolutions must be of this dtype; absent: any.
  std::optional<at::ScalarType> dtype = {};
  // load: where the layers are to lie, one device for all or one for each; in a pair of caches the
  // encoder's side of a layer lies where the layer does.
  std::vector<at::Device> devices = {at::kCPU};
};

// Writes layers, integers, live bytes and the tokens seen, of both caches of an
// EncoderDecoderCache: it goes on to know its encoder's input. Rows that share a prefix each get
// it. The file appears whole or not at all. Throws RuntimeError while a step is open or layers
// differ in length, and as save_safetensors() does.
void save_cache(Cache& cache, const std::filesystem::path& path,
                const CacheFileOptions& options = {});

// Makes `cache` hold what a file says; it must be of the same kind and have the same layers, or
// none yet where it makes them as keys come in. What it held before is forgotten; recording goes on
// as in the file or as before, whichever keeps more. Buffers of a fixed size keep their size, or
// get as much as activate_past_recording() before the first token would make; they keep their
// addresses if they fit. Throws ValueError for a file that is damaged or of another kind, version,
// model, dtype, or of other layers, or that holds more than those buffers do or another shape than
// early_initialization() fixed, naming what differs, and RuntimeError while a step is open; the
// cache is then as it was.
void load_cache(Cache& cache, const std::filesystem::path& path,
                const CacheFileOptions& options = {});

// What a file says of the cache in it.
struct CacheFileInfo {
  std::string kind;                // Cache::kind()
  std::string fingerprint;         // of the model that filled it; empty: not noted
  std::int64_t batch = 0;          // rows, of a pair of caches the decoder's
  std::int64_t tokens = 0;         // seen by each
  std::int64_t max_cache_len = 0;  // what a StaticCache is to be made with that takes the file in
  // Of an EncoderDecoderCache: of its self- and its cross-attention cache.
  std::vector<CacheFileInfo> parts = {};
};

// Reads that much of a file, so that a cache can be made to load it into. Throws ValueError for a
// file that is damaged there, or of another version, or not of a cache.
CacheFileInfo read_cache_file_info(const std::filesystem::path& path);

}  // namespace kvcache
