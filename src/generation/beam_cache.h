// The cache of a beam search: filled once for each prompt row, then a row for each beam, and in the
// end one for each text that is returned.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/cache/cache.h"

namespace kvcache::detail {

class BeamCache {
 public:
  // `cache` null: nothing is held, and nothing is done. `keeps_all`: its layers keep all tokens, so
  // that they can always be taken back.
  BeamCache(Cache* cache, bool keeps_all) : cache_(cache), keeps_all_(keeps_all) {}

  // From now on each row is `beams` ones, which share what is held where that is possible.
  void expand(std::int64_t beams);

  // Each beam goes on from another one.
  void follow(const at::Tensor& beams);

  // Makes row i hold what beam rows[i] holds, but its last `tokens` tokens; where they cannot be
  // taken back, or the cache was not expanded, what it held before, each row `each` times.
  void end(const std::vector<std::int64_t>& rows, std::int64_t tokens, std::int64_t each);

  // Goes back to what was held when it was expanded; if that cannot be done, to nothing.
  void undo() noexcept;

 private:
  void repeat(std::int64_t times);
  void go_back();

  Cache* cache_;
  bool keeps_all_;
  std::optional<Snapshot> start_ = {};  // where tokens may not be taken back
  std::int64_t held_ = 0;               // tokens, when it was expanded
  std::int64_t rows_ = 0;               // then; 0: it was not
};

}  // namespace kvcache::detail
