// Caches of fixed size that a Runner made and uses again, so that calls of growing lengths do not
// allocate each time and addresses stay.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvcache/cache/cache.h"

namespace kvcache::detail {

struct CacheRoom {
  std::int64_t rows = 1;  // preferred, so that buffers stay; another number makes new ones
  std::int64_t tokens = 1;
  std::int64_t encoder_tokens = 0;  // of a model with an encoder
};

class KeptCaches {
 public:
  // A cache without tokens that nobody else holds, with at least so much room: one that is kept, or
  // one that `make` makes, which is then kept instead of those that are too small.
  std::shared_ptr<Cache> take(const CacheRoom& room,
                              const std::function<std::unique_ptr<Cache>()>& make);

  // Drops those that nobody else holds.
  void release();

 private:
  // Two, so that a caller who holds the last answer while the next one is made allocates no third.
  static constexpr std::size_t kMost = 2;

  std::vector<std::shared_ptr<Cache>> caches_;  // the least recently used first
};

}  // namespace kvcache::detail
