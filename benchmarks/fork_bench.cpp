// What do continuations of one prefix cost beside copies of it?
//
// Forks of a prefix against one copy of it, in time and heap; then reordering beams over a shared
// prefix against reordering beams that each hold it. Layers of SmolLM2-135M's shape (3 heads of 64,
// float32).

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"

namespace {

constexpr std::int64_t kHeads = 3, kHeadDim = 64;
constexpr std::int64_t kPrefix = 4096;  // tokens
constexpr std::int64_t kForks = 16;     // forks, and beams

using Clock = std::chrono::steady_clock;

at::Tensor states(std::int64_t rows, std::int64_t tokens) {
  return at::randn({rows, kHeads, tokens, kHeadDim});
}

// A cache that has seen a prefix of kPrefix tokens.
std::unique_ptr<kvcache::DynamicCache> make_prefix(std::int64_t layers) {
  auto cache = std::make_unique<kvcache::DynamicCache>(
      std::vector<kvcache::LayerSpec>(static_cast<std::size_t>(layers)));
  kvcache::Step step =
      cache->begin_step({.tokens = kPrefix, .batch = 1, .ids = at::ones({1, kPrefix}, at::kLong)});
  for (std::int64_t i = 0; i < layers; ++i) step.append(i, states(1, kPrefix), states(1, kPrefix));
  step.commit();
  return cache;
}

// Milliseconds that `call` takes, the least of `rounds`.
template <typename F>
double least_ms(int rounds, F call) {
  double least = 1e300;
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    call();
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    least = std::min(least, elapsed.count());
  }
  return least;
}

// Bytes of the heap in use: tensors, histories, layers and all.
double heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return double(info.uordblks) + double(info.hblkhd);
}

void print_forks() {
  constexpr std::int64_t kLayers = 30;
  const auto prefix = make_prefix(kLayers);
  std::unique_ptr<kvcache::Cache> copy;
  const double clone_ms = least_ms(3, [&] { copy = prefix->clone(); });
  copy.reset();
  std::vector<std::unique_ptr<kvcache::Cache>> forks;
  const auto fork_all = [&] {
    for (std::int64_t i = 0; i < kForks; ++i) forks.push_back(prefix->fork());
  };
  const double first_ms = least_ms(1, fork_all);
  double fork_ms = first_ms;
  for (int round = 0; round < 20; ++round) {
    forks.clear();
    fork_ms = std::min(fork_ms, least_ms(1, fork_all));
  }
  forks.clear();
  const double before = heap_bytes();
  fork_all();
  const double added = heap_bytes() - before;
  const auto held = double(prefix->allocated_bytes());
  std::printf(
      "%ld forks of a %ld-token prefix of %ld layers, %.1f MB: %.3f ms (the first %.3f), "
      "one clone %.1f ms: %.3f%%\n",
      long(kForks), long(kPrefix), long(kLayers), held / 1e6, fork_ms, first_ms, clone_ms,
      100 * fork_ms / clone_ms);
  std::printf("they add %.0f kB before they are written to: %.3f%% of the prefix\n", added / 1e3,
              100 * added / held);
}

// Which tensors are written to or replaced between two walks, as their version counters tell.
class Written final : public kvcache::Visitor {
 public:
  void tensor(const kvcache::TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined()) return;
    const std::pair<const void*, std::int64_t> now(tensor.unsafeGetTensorImpl(), tensor._version());
    if (!second_) return before_.push_back(now);
    if (before_.at(next_++) == now) return;
    for (const at::Tensor& part : kvcache::detail::live_parts(info, tensor)) {
      bytes_ += double(part.nbytes());
    }
  }
  void count(std::string_view, std::int64_t&) override {}

  void begin_second() { second_ = true; }
  double bytes() const { return bytes_; }  // of what is live in them

 private:
  std::vector<std::pair<const void*, std::int64_t>> before_;
  bool second_ = false;
  std::size_t next_ = 0;
  double bytes_ = 0;
};

// Beams over one prefix, or each with its own, after some tokens.
void print_reorder() {
  constexpr std::int64_t kLayers = 4, kTail = 64;
  double shared_ms = 0, own_ms = 0;
  for (const bool shared : {true, false}) {
    const auto beams = make_prefix(kLayers);
    shared ? beams->expand(kForks) : beams->batch_repeat_interleave(kForks);
    const at::Tensor tail = states(kForks, kTail);
    for (std::int64_t i = 0; i < kLayers; ++i) beams->append(tail, tail, i);
    const at::Tensor order = at::ones({kForks}, at::kLong);
    (shared ? shared_ms : own_ms) = least_ms(5, [&] { beams->reorder_cache(order); });
    Written written;
    beams->visit(written);
    beams->reorder_cache(order);
    written.begin_second();
    beams->visit(written);
    std::printf("reorder of %ld beams over %s prefix of %ld tokens moves %.2f MB of %.2f\n",
                long(kForks), shared ? "one" : "a", long(kPrefix), written.bytes() / 1e6,
                double(beams->nbytes()) / 1e6);
  }
  std::printf("shared %.3f ms, own prefixes %.1f ms: %.0fx\n", shared_ms, own_ms,
              own_ms / shared_ms);
}

}  // namespace

int main() {
  print_forks();
  print_reorder();
  return 0;
}
