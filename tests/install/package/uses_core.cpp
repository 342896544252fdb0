// The header-only part: a cache that hands back what it was given.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <cstdio>

#include "kvcache/cache/dynamic_cache.h"

int main() {
  kvcache::DynamicCache cache;
  const at::Tensor keys =
      at::arange(6.0).view({1, 1, 3, 2});  // [batch, kv_heads, tokens, head_dim]
  const at::Tensor values = at::arange(10.0, 16.0).view({1, 1, 3, 2});
  const auto [all_keys, all_values] = cache.update(keys, values, 0);
  const bool good =
      cache.get_seq_length() == 3 && at::equal(all_keys, keys) && at::equal(all_values, values);
  std::puts(good ? "ok" : "the cache gave back something else");
  return good ? 0 : 1;
}
