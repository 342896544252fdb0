// generate() that tries again, with the next cheaper cache, when memory runs out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/output.h"
#include "kvcache/generation/runner.h"
#include "kvcache/models/language_model.h"

namespace kvcache {

struct GenerationAttempt {
  std::string cache;  // its kind, as in cache_implementation, or that of the one passed in; "none"
  // Bytes of that cache with the longest text that the config allows, by Cache::plan; absent where
  // layers do not say how large what they hold is. With num_beams a whole row for each beam: more
  // than it takes where one prompt in growing layers is held once for all of them.
  std::optional<std::int64_t> planned_bytes = {};
  std::string error = {};  // what there was no memory for; empty: it made the output
};

struct ResilientOutput {
  Output output;
  std::vector<GenerationAttempt> attempts =
      {};  // in order, one a config that was tried; the last made it
};

// As runner.generate() with the first of `configs`, and on c10::OutOfMemoryError, or the c10::Error
// of LibTorch's allocator on the CPU, with the next one, until one succeeds. Each is complete:
// `GenerationConfig{.cache_implementation = "static"}.over(config)` makes one of another; the first
// is how it is best, those behind need less: another cache, a smaller prefill_chunk_size. All are
// checked before the first runs.
//
// Before each retry what the failed attempt held is freed: its cache, the runner's caches that
// nobody holds, and what the devices' allocators keep back. The generator and a cache that was
// passed in are put back to what they were, so that the ids are those of the attempt that succeeds
// alone. The mark of such a cache (Cache::snapshot) costs what fork() costs: little in growing
// layers, a copy of layers of a fixed size and of states. max_time counts for each attempt anew.
//
// A streamer gets each token once: what an earlier attempt streamed is left out, and must come
// again, else RuntimeError (caches that round may choose other tokens). Processors and criteria of
// one's own see each attempt's text from its start.
//
// Throws c10::OutOfMemoryError, naming each attempt, when all have failed, with generator and cache
// put back; ValueError for no config. What else generate() throws passes through at once.
ResilientOutput resilient_generate(Runner& runner, const Inputs& inputs,
                                   const std::vector<GenerationConfig>& configs,
                                   Cache* past_key_values = nullptr);

// The same with a runner of its own.
ResilientOutput resilient_generate(const LanguageModel& model, const Inputs& inputs,
                                   const std::vector<GenerationConfig>& configs,
                                   Cache* past_key_values = nullptr);

}  // namespace kvcache
