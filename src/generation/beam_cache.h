// The cache of a beam search: filled once for each prompt row, then a row for each beam, and in the
// end one for each text that is returned.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "generation/running_rows.h"
#include "kvcache/cache/cache.h"

namespace kvcache::detail {

// The prompts whose beams, so many of each, are in a part.
std::vector<std::int64_t> prompts_of(const CachePart& part, std::int64_t beams);

class BeamCache {
 public:
  // `cache` null: nothing is held, and nothing is done. `keeps_all`: its layers keep all tokens, so
  // that they can always be taken back.
  BeamCache(Cache* cache, bool keeps_all) : cache_(cache), keeps_all_(keeps_all) {}

  // From now on each row is `beams` ones, which share what is held where that is possible.
  void expand(std::int64_t beams);

  // Whether beams whose prompt is done may leave: not where rows lie together for good.
  bool may_leave() const { return cache_ == nullptr || !cache_->has_bound_rows(); }

  // Tokens of each row that came after it was expanded; 0 if it was not.
  std::int64_t new_tokens(const Cache& cache) const {
    return rows_ > 0 ? cache.history().seen() - held_ : 0;
  }

  // In `cache`, the whole one or the part of those prompts: makes row i hold what its beam rows[i]
  // holds, but its last `tokens` tokens; where they cannot be taken back, or it was not expanded,
  // what it held before, as many neighbouring rows for each prompt.
  void end(const std::vector<std::int64_t>& rows, std::int64_t tokens,
           const std::vector<std::int64_t>& prompts, Cache& cache) const;

  // Goes back to what was held when it was expanded; if that cannot be done, to nothing. `parts`:
  // those of beams that it is in, of whole prompts; none if it is whole.
  void undo(std::vector<CachePart> parts, std::int64_t beams) noexcept;

 private:
  void go_back(const std::vector<std::int64_t>& prompts, Cache& cache) const;

  Cache* cache_;
  bool keeps_all_;
  std::optional<Snapshot> start_ = {};  // where tokens may not be taken back
  std::int64_t held_ = 0;               // tokens, when it was expanded
  std::int64_t rows_ = 0;               // then; 0: it was not
};

}  // namespace kvcache::detail
