// Files of caches that a run begins from or leaves behind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "generate/arguments.h"
#include "kvcache/cache/cache.h"
#include "kvcache/cache/serialization.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/models/language_model.h"

namespace generate_program {

// The file to begin from, and what is asked of the cache in it.
struct CacheToLoad {
  kvcache::CacheFileInfo info;
  std::int64_t least_room = 0;  // tokens
};

// Looks at --save-cache and --load-cache before anything is computed. `given`: what options and
// --generation-config say of the cache; `config`: that over the checkpoint's own. Absent:
// there is none to load. Throws kvcache::ValueError for files that cannot be
// written or are not of a cache, and for what does not go with them.
std::optional<CacheToLoad> check_cache_files(const Arguments& arguments,
                                             const kvcache::GenerationConfig& given,
                                             const kvcache::GenerationConfig& config);

// The cache in --load-cache's file, of the kind and room that it says. `rows`: sequences that are
// to be made. Throws kvcache::ValueError for a file that is damaged or of another model or dtype,
// with another number of rows or too little room.
std::unique_ptr<kvcache::Cache> load_cache(const Arguments& arguments, const CacheToLoad& file,
                                           const kvcache::LanguageModel& model, std::int64_t rows);

// Writes --save-cache's file.
void save_cache(const Arguments& arguments, kvcache::Cache& cache,
                const kvcache::LanguageModel& model);

}  // namespace generate_program
