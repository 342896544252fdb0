// What does it cost to append one token to a layer, and does that depend on how much it holds?
//
// Each row appends tokens one by one to a layer of SmolLM2-135M's shape (3 heads of 64, float32),
// ours and the way of joining tensors at every step. `mean` and `median` are over all steps of a
// doubling of the context for ours, growth included, and over `steps` steps for the joined form,
// which costs the same at each. The table at the end gives the ratios.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
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
  return 0;
}
