#include "kvcache/retention/retention.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

// Plain definition: a query at p sees p - window + 1 .. p; the first column is the oldest position
// that the first new query sees.
constexpr bool sliding_holds(std::int64_t window, std::int64_t seen, std::int64_t tokens) {
  const Visible visible = Retention::sliding(window).visible(seen, tokens);
  std::int64_t oldest = seen;
  while (oldest > 0 && oldest - 1 >= seen - window + 1) --oldest;
  return visible.offset == oldest && visible.length == seen + tokens - oldest &&
         visible.length == std::min(seen, window - 1) + tokens && visible.window == window;
}

constexpr bool all_small_cases() {
  for (std::int64_t seen = 0; seen <= 12; ++seen) {
    for (std::int64_t tokens = 1; tokens <= 6; ++tokens) {
      const Visible full = Retention::full().visible(seen, tokens);
      if (full != Visible{.length = seen + tokens, .offset = 0}) return false;
      for (std::int64_t size = 1; size <= 9; ++size) {
        if (!sliding_holds(size, seen, tokens)) return false;
        const Visible chunked = Retention::chunked(size).visible(seen, tokens);
        const Visible sliding = Retention::sliding(size).visible(seen, tokens);
        if (chunked.length != sliding.length || chunked.offset != sliding.offset) return false;
        if (chunked.chunk != size || chunked.window) return false;
        // Every position of the first query's chunk is among the columns.
        if (seen / size * size < chunked.offset) return false;
      }
    }
  }
  return true;
}

static_assert(all_small_cases());

TEST(Retention, AllSmallCasesAreConstant) { EXPECT_TRUE(all_small_cases()); }

TEST(Retention, RefusesAnEmptyWindow) {
  EXPECT_THROW(Retention::sliding(0), ValueError);
  EXPECT_THROW(Retention::chunked(-1), ValueError);
}

}  // namespace
}  // namespace kvcache
