#include "kvcache/generation/detail/kept_caches.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kvcache/cache/encoder_decoder_cache.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

bool is_free(const std::shared_ptr<Cache>& cache) {
  if (cache.use_count() > 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // its last holder may be another thread
  return true;
}

// Also false for a cache whose content somebody moved away while he held it.
bool has_room(Cache& cache, const CacheRoom& room) {
  try {
    if (auto* pair = dynamic_cast<EncoderDecoderCache*>(&cache)) {
      const auto encoder = pair->cross_attention_cache().capacity();
      if (encoder.value_or(room.encoder_tokens) < room.encoder_tokens) return false;
    }
    return cache.capacity().value_or(room.tokens) >= room.tokens;
  } catch (const RuntimeError&) {
    return false;
  }
}

}  // namespace

std::shared_ptr<Cache> KeptCaches::take(const CacheRoom& room,
                                        const std::function<std::unique_ptr<Cache>()>& make) {
  std::erase_if(caches_,
                [&](const auto& cache) { return is_free(cache) && !has_room(*cache, room); });
  auto chosen = caches_.end();
  for (auto cache = caches_.begin(); cache != caches_.end(); ++cache) {
    if (!is_free(*cache)) continue;
    if (chosen == caches_.end() || (*cache)->batch_size() == room.rows) chosen = cache;
  }
  std::shared_ptr<Cache> taken;
  if (chosen != caches_.end()) {
    taken = std::move(*chosen);
    caches_.erase(chosen);
    taken->reset();
  } else {
    if (caches_.size() == kMost) caches_.erase(caches_.begin());
    taken = make();
  }
  caches_.push_back(taken);
  return taken;
}

void KeptCaches::release() { std::erase_if(caches_, is_free); }

}  // namespace kvcache::detail
