// What does it cost to append one token to a layer, and does that depend on how much it holds?
//
// Each row appends tokens one by one to a layer of SmolLM2-135M's shape (3 heads of 64, float32),
// ours and the way of joining tensors at every step. `mean` and `median` are over all steps of a
// doubling of the context for ours, growth included, and over `steps` steps for the joined form,
// which costs the same at each. The table at the end gives the ratios. Then: what forks of a prefix
// cost beside a copy of it, in time and heap, and what reordering beams over a shared prefix costs
// beside reordering beams that each hold it.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"

namespace {

constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kWindow = 512;
constexpr std::int64_t kJoinedSteps = 40;

using Clock = std::chrono::steady_clock;

struct Cost {
  double mean_ns;
  double median_ns;
};

std::map<std::int64_t, Cost> growing_costs, sliding_costs, joined_costs;  // by context length

at::Tensor states(std::int64_t tokens) { return at::randn({1, kHeads, tokens, kHeadDim}); }

// Times `step` once per benchmark iteration and keeps mean and median.
template <typename F>
Cost time_steps(benchmark::State& state, F step) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const auto start = Clock::now();
    step();
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    state.SetIterationTime(elapsed.count());
    times.push_back(elapsed.count() * 1e9);
  }
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / double(times.size());
  std::nth_element(times.begin(), times.begin() + long(times.size() / 2), times.end());
  const Cost cost{mean, times[times.size() / 2]};
  state.counters["mean_ns"] = cost.mean_ns;
  state.counters["median_ns"] = cost.median_ns;
  return cost;
}

void append(benchmark::State& state, const kvcache::LayerSpec& spec,
            std::map<std::int64_t, Cost>& costs) {
  kvcache::DynamicCache cache({spec});
  for (std::int64_t held = 0; held < state.range(0); held += 1024) {
    cache.append(states(1024), states(1024), 0);
  }
  const at::Tensor keys = states(1), values = states(1);
  costs[state.range(0)] = time_steps(
      state, [&] { benchmark::DoNotOptimize(cache.append(keys, values, 0).segments.data()); });
}

void growing(benchmark::State& state) { append(state, {}, growing_costs); }

void sliding(benchmark::State& state) {
  append(state, {.type = std::string(kvcache::kSlidingAttention), .window = kWindow},
         sliding_costs);
}

void joined(benchmark::State& state) {
  at::Tensor all_keys = states(state.range(0)), all_values = states(state.range(0));
  const at::Tensor keys = states(1), values = states(1);
  joined_costs[state.range(0)] = time_steps(state, [&] {
    all_keys = at::cat({all_keys, keys}, 2);
    all_values = at::cat({all_values, values}, 2);
  });
}

void print_ratios() {
  std::printf("\n%8s %28s %28s %14s %10s\n", "context", "growing mean / median ns",
              "sliding mean / median ns", "joined ns", "ratio");
  for (const auto& [context, ours] : growing_costs) {
    const Cost sliding = sliding_costs[context], joined = joined_costs[context];
    std::printf("%8ld %17.0f / %8.0f %17.0f / %8.0f %14.0f %9.0fx\n", long(context), ours.mean_ns,
                ours.median_ns, sliding.mean_ns, sliding.median_ns, joined.median_ns,
                joined.median_ns / ours.mean_ns);
  }
  if (growing_costs.count(1024) != 0 && growing_costs.count(65536) != 0) {
    std::printf("64k against 1k: mean %.2f, median %.2f times\n",
                growing_costs[65536].mean_ns / growing_costs[1024].mean_ns,
                growing_costs[65536].median_ns / growing_costs[1024].median_ns);
  }
}

constexpr std::int64_t kPrefix = 4096;  // tokens
constexpr std::int64_t kForks = 16;     // forks, and beams

// A cache that has seen a prefix of kPrefix tokens.
std::unique_ptr<kvcache::DynamicCache> make_prefix(std::int64_t layers) {
  auto cache = std::make_unique<kvcache::DynamicCache>(
      std::vector<kvcache::LayerSpec>(static_cast<std::size_t>(layers)));
  kvcache::Step step =
      cache->begin_step({.tokens = kPrefix, .batch = 1, .ids = at::ones({1, kPrefix}, at::kLong)});
  for (std::int64_t i = 0; i < layers; ++i) step.append(i, states(kPrefix), states(kPrefix));
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
  const auto prefix = make_prefix(30);
  const double clone_ms = least_ms(3, [&] { benchmark::DoNotOptimize(prefix->clone()); });
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
      "\n%ld forks of a %ld-token prefix of 30 layers, %.1f MB: %.3f ms (the first %.3f), "
      "one clone %.1f ms: %.3f%%\n",
      long(kForks), long(kPrefix), held / 1e6, fork_ms, first_ms, clone_ms,
      100 * fork_ms / clone_ms);
  std::printf("they add %.0f kB before they are written to: %.3f%% of the prefix\n", added / 1e3,
              100 * added / held);
}

// Beams over one prefix, or each with its own, after some tokens.
void print_reorder() {
  constexpr std::int64_t kLayers = 4, kTail = 64;
  double shared_ms = 0, own_ms = 0;
  for (const bool shared : {true, false}) {
    const auto beams = make_prefix(kLayers);
    const std::int64_t prefix_bytes = beams->nbytes();
    shared ? beams->expand(kForks) : beams->batch_repeat_interleave(kForks);
    const at::Tensor tail = at::randn({kForks, kHeads, kTail, kHeadDim});
    for (std::int64_t i = 0; i < kLayers; ++i) beams->append(tail, tail, i);
    const at::Tensor order = at::ones({kForks}, at::kLong);
    (shared ? shared_ms : own_ms) = least_ms(5, [&] { beams->reorder_cache(order); });
    const std::int64_t moved = beams->nbytes() - (shared ? prefix_bytes : 0);
    std::printf("reorder of %ld beams over %s prefix of %ld tokens moves %.2f MB of %.2f\n",
                long(kForks), shared ? "one" : "a", long(kPrefix), double(moved) / 1e6,
                double(beams->nbytes()) / 1e6);
  }
  std::printf("shared %.3f ms, own prefixes %.1f ms: %.0fx\n", shared_ms, own_ms,
              own_ms / shared_ms);
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::int64_t context : {1024, 4096, 16384, 65536}) {
    benchmark::RegisterBenchmark("growing", growing)
        ->Arg(context)
        ->Iterations(context)
        ->UseManualTime();
    benchmark::RegisterBenchmark("sliding", sliding)
        ->Arg(context)
        ->Iterations(context)
        ->UseManualTime();
    benchmark::RegisterBenchmark("joined", joined)
        ->Arg(context)
        ->Iterations(kJoinedSteps)
        ->UseManualTime();
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  print_ratios();
  print_forks();
  print_reorder();
  return 0;
}
