// What does it cost a layer to take one token in, and does that depend on how many it has seen?
//
// Every kind of layer, growing and of a fixed size, float32: keys and values of SmolLM2-135M's
// shape (3 heads of 64), convolution and recurrent states of mamba-130m's (1,536 channels, 4 taps,
// 16 numbers a channel). Timed is all that a model asks of the cache for a token: begin_step with
// its id, append, the updates of states, commit. Each row goes on from a context and takes as many
// tokens again, so that its mean contains growth and eviction. `joined` is the other way, a
// concatenation of all keys and of all values at each step, over kJoinedSteps steps. The table at
// the end sets 65,536 tokens against 1,024: 1 is flat.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/static_cache.h"

namespace {

constexpr std::int64_t kContexts[] = {1024, 4096, 16384, 65536};  // tokens
constexpr std::int64_t kPiece = 1024;                             // tokens a step fills in
constexpr std::int64_t kWindow = 512;
constexpr std::int64_t kHeads = 3, kHeadDim = 64;
constexpr std::int64_t kChannels = 1536, kTaps = 4, kStateDim = 16;
constexpr std::int64_t kRecorded = 16;  // tokens that can be taken back
constexpr std::int64_t kJoinedSteps = 40;

using Clock = std::chrono::steady_clock;
using kvcache::LayerSpec;

struct Kind {
  const char* name;
  LayerSpec spec;
  bool fixed = false;    // of a StaticCache with room for all tokens
  bool records = false;  // past states, of kRecorded tokens
};

LayerSpec layer(std::string_view type, std::int64_t window = 0) {
  return {.type = std::string(type), .window = window};
}

std::vector<Kind> kinds() {
  const LayerSpec full = layer(kvcache::kFullAttention);
  const LayerSpec sliding = layer(kvcache::kSlidingAttention, kWindow);
  const LayerSpec chunked = layer(kvcache::kChunkedAttention, kWindow);
  const LayerSpec linear = layer(kvcache::kLinearAttention), hybrid = layer(kvcache::kHybrid);
  return {{.name = "growing full", .spec = full},
          {.name = "growing sliding", .spec = sliding},
          {.name = "growing sliding, recording", .spec = sliding, .records = true},
          {.name = "growing chunked", .spec = chunked},
          {.name = "static full", .spec = full, .fixed = true},
          {.name = "static sliding", .spec = sliding, .fixed = true},
          {.name = "static sliding, recording", .spec = sliding, .fixed = true, .records = true},
          {.name = "static chunked", .spec = chunked, .fixed = true},
          {.name = "linear", .spec = linear},
          {.name = "linear, recording", .spec = linear, .records = true},
          {.name = "hybrid growing", .spec = hybrid},
          {.name = "hybrid static", .spec = hybrid, .fixed = true}};
}

at::Tensor states(std::int64_t tokens) { return at::randn({1, kHeads, tokens, kHeadDim}); }

std::unique_ptr<kvcache::LayeredCache> make_cache(const Kind& kind, std::int64_t room) {
  const std::vector<LayerSpec> layers{kind.spec};
  std::unique_ptr<kvcache::LayeredCache> cache;
  if (kind.fixed) {
    cache = std::make_unique<kvcache::StaticCache>(
        layers, kvcache::StaticCacheOptions{.max_cache_len = room});
  } else {
    cache = std::make_unique<kvcache::DynamicCache>(layers);
  }
  if (kind.records) cache->activate_past_recording(kRecorded);
  return cache;
}

// Steps of so many tokens, whose tensors are made once.
class Steps {
 public:
  Steps(const Kind& kind, std::int64_t tokens)
      : has_keys_(kind.spec.type != kvcache::kLinearAttention),
        has_states_(kvcache::has_states(kind.spec)),
        ids_(at::ones({1, tokens}, at::kLong)) {
    if (has_keys_) {
      keys_ = states(tokens);
      values_ = states(tokens);
    }
    if (has_states_) {
      const std::int64_t wanted = kind.records ? std::min(tokens, kRecorded + 1) : 1;
      inputs_ = at::randn({1, kChannels, tokens});
      recurrent_ = at::randn({wanted, 1, kChannels, kStateDim});
    }
  }

  void take(kvcache::Cache& cache) const {
    kvcache::Step step = cache.begin_step({.tokens = ids_.size(1), .batch = 1, .ids = ids_});
    if (has_keys_) benchmark::DoNotOptimize(step.append(0, keys_, values_).segments.data());
    if (has_states_) {
      step.update_conv_state(0, inputs_, {.kernel_size = kTaps});
      benchmark::DoNotOptimize(step.recurrent_state(0));
      step.update_recurrent_state(0, recurrent_);
    }
    step.commit();
  }

 private:
  bool has_keys_;
  bool has_states_;
  at::Tensor ids_, keys_, values_, inputs_, recurrent_;
};

struct Cost {
  double mean_us;
  double median_us;
};

using Costs = std::map<std::int64_t, Cost>;  // by context
std::map<std::string, Costs> all_costs;      // by kind

// Times `step` once per benchmark iteration and keeps mean and median.
template <typename F>
void time_steps(benchmark::State& state, const std::string& kind, F step) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const auto start = Clock::now();
    step();
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    state.SetIterationTime(elapsed.count());
    times.push_back(elapsed.count() * 1e6);
  }
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / double(times.size());
  std::nth_element(times.begin(), times.begin() + long(times.size() / 2), times.end());
  const Cost cost{mean, times[times.size() / 2]};
  state.counters["mean_us"] = cost.mean_us;
  state.counters["median_us"] = cost.median_us;
  all_costs[kind][state.range(0)] = cost;
}

void take_tokens(benchmark::State& state, const Kind& kind) {
  const std::int64_t context = state.range(0);
  const auto cache = make_cache(kind, 2 * context);
  const Steps pieces(kind, kPiece), tokens(kind, 1);
  for (std::int64_t seen = 0; seen < context; seen += kPiece) pieces.take(*cache);
  time_steps(state, kind.name, [&] { tokens.take(*cache); });
}

void join(benchmark::State& state) {
  at::Tensor all_keys = states(state.range(0)), all_values = states(state.range(0));
  const at::Tensor keys = states(1), values = states(1);
  time_steps(state, "joined", [&] {
    all_keys = at::cat({all_keys, keys}, 2);
    all_values = at::cat({all_values, values}, 2);
  });
}

// Kinds or contexts that a filter left out have no number.
void print_row(const char* name, const Costs& costs) {
  std::printf("%-28s", name);
  for (const std::int64_t context : kContexts) {
    const auto found = costs.find(context);
    if (found == costs.end()) {
      std::printf("%22s", "-");
    } else {
      std::printf("%11.1f / %8.1f", found->second.mean_us, found->second.median_us);
    }
  }
  const auto first = costs.find(std::begin(kContexts)[0]),
             last = costs.find(std::end(kContexts)[-1]);
  if (first != costs.end() && last != costs.end()) {
    std::printf("%12.2f / %6.2f", last->second.mean_us / first->second.mean_us,
                last->second.median_us / first->second.median_us);
  }
  std::printf("\n");
}

void print_table(const std::vector<Kind>& kinds) {
  std::printf("\nmean / median us a token at a context of\n%-28s", "");
  for (const std::int64_t context : kContexts) std::printf("%22ld", long(context));
  std::printf("%21s\n", "64k / 1k");
  for (const Kind& kind : kinds) print_row(kind.name, all_costs[kind.name]);
  print_row("joined", all_costs["joined"]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Kind> all = kinds();
  for (const std::int64_t context : kContexts) {
    for (const Kind& kind : all) {
      benchmark::RegisterBenchmark(kind.name, take_tokens, kind)
          ->Arg(context)
          ->Iterations(context)
          ->UseManualTime();
    }
    benchmark::RegisterBenchmark("joined", join)
        ->Arg(context)
        ->Iterations(kJoinedSteps)
        ->UseManualTime();
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  print_table(all);
  return 0;
}
