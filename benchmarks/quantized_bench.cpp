// What do packed keys and values cost beside dense ones: to attend to, to append to, in memory?
//
// quantized_bench [attention] [append] [memory] [TOKENS]: all three unless some are named, over so
// many tokens of context (16,384; append: from 1,024 to four times as many). Layers of
// SmolLM2-135M's shape: 3 KV heads of 64 and 9 query heads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/attention/attention.h"
#include "kvcache/cache/dynamic_cache.h"
#include "kvcache/cache/quantized_cache.h"

// ---- bytes in use: tensors by LibTorch's allocator, all else by operator new --------------------

namespace {

std::atomic<std::int64_t> bytes_in_use{0}, most_in_use{0};

void count_taken(void* data) {
  const auto bytes = static_cast<std::int64_t>(malloc_usable_size(data));
  const std::int64_t now = bytes_in_use.fetch_add(bytes) + bytes;
  std::int64_t most = most_in_use.load();
  while (now > most && !most_in_use.compare_exchange_weak(most, now)) {
  }
}

void count_freed(void* data) {
  bytes_in_use.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(data)));
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    count_taken(data);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    count_freed(data);
    c10::free_cpu(data);
  }
};

}  // namespace

// Not inlined, as GCC would take their malloc() and free() for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* data = std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  count_taken(data);
  return data;
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  count_freed(data);
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { operator delete(data); }

// ---- what is measured ---------------------------------------------------------------------------

namespace {

constexpr std::int64_t kHeads = 3, kQueryHeads = 9, kHeadDim = 64;
constexpr std::int64_t kPiece = 1024;  // tokens a step fills in

using Clock = std::chrono::steady_clock;

struct Kind {
  const char* name;
  std::optional<kvcache::QuantizedCacheConfig> config = {};  // absent: dense
};

std::vector<Kind> kinds() {
  return {
      {"dense"},
      {"quanto 4 bits, axes 0 0", {{.nbits = 4, .axis_key = 0, .axis_value = 0}}},
      {"quanto 4 bits, axes -1 0", {{.nbits = 4, .axis_key = -1, .axis_value = 0}}},
      {"hqq 4 bits, axes 1 1", {{.backend = "hqq", .nbits = 4, .axis_key = 1, .axis_value = 1}}},
      {"int 8 bits", {{.backend = "int", .nbits = 8}}},
      {"int 4 bits", {{.backend = "int", .nbits = 4}}},
      {"fp8", {{.backend = "fp8"}}},
      {"quanto 2 bits, axes -1 0", {{.nbits = 2, .axis_key = -1, .axis_value = 0}}}};
}

// One token or more of one row, made once.
struct Tokens {
  Tokens(std::int64_t count, at::ScalarType dtype)
      : ids(at::ones({1, count}, at::kLong)),
        keys(at::randn({1, kHeads, count, kHeadDim}).to(dtype)),
        values(at::randn({1, kHeads, count, kHeadDim}).to(dtype)) {}

  kvcache::Step begin(kvcache::Cache& cache) const {
    return cache.begin_step({.tokens = ids.size(1), .batch = 1, .ids = ids});
  }

  at::Tensor ids, keys, values;
};

// A cache of full layers that has seen `tokens`, a multiple of kPiece.
std::unique_ptr<kvcache::LayeredCache> make_cache(const Kind& kind, std::int64_t layers,
                                                  std::int64_t tokens, at::ScalarType dtype) {
  const std::vector<kvcache::LayerSpec> specs(static_cast<std::size_t>(layers));
  std::unique_ptr<kvcache::LayeredCache> cache;
  if (kind.config) {
    cache = std::make_unique<kvcache::QuantizedCache>(
        specs, kvcache::QuantizedCacheOptions{.config = *kind.config});
  } else {
    cache = std::make_unique<kvcache::DynamicCache>(specs);
  }
  for (std::int64_t seen = 0; seen < tokens; seen += kPiece) {
    const Tokens piece(kPiece, dtype);
    kvcache::Step step = piece.begin(*cache);
    for (std::int64_t i = 0; i < layers; ++i) step.append(i, piece.keys, piece.values);
    step.commit();
  }
  return cache;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + long(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <typename F>
double microseconds(F call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// ---- attention ----------------------------------------------------------------------------------

// One layer within a step, whose view stays.
struct OpenLayer {
  OpenLayer(const Kind& kind, std::int64_t tokens, at::ScalarType dtype)
      : cache(make_cache(kind, 1, tokens, dtype)), token(1, dtype), step(token.begin(*cache)) {
    view = step.append(0, token.keys, token.values);
  }

  std::unique_ptr<kvcache::LayeredCache> cache;
  Tokens token;
  kvcache::Step step;
  kvcache::View view;
};

struct Side {
  Kind kind;
  at::ScalarType dtype;
  std::vector<std::unique_ptr<OpenLayer>> layers = {};
  std::vector<double> times = {};  // microseconds a layer, one number a round

  std::string name() const {
    return std::string(kind.name) + (dtype == at::kFloat ? ", float32" : ", bfloat16");
  }
};

void attend(Side& side) {
  const at::Tensor query = at::randn({1, kQueryHeads, 1, kHeadDim}).to(side.dtype);
  const double total = microseconds([&] {
    for (const auto& layer : side.layers) kvcache::attention(query, layer->view, {});
  });
  side.times.push_back(total / double(side.layers.size()));
}

void print_side(const Side& side, const Side& bfloat16, const Side& float32) {
  std::printf("%-36s%10.0f", side.name().c_str(), median(side.times));
  for (const Side* dense : {&bfloat16, &float32}) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < side.times.size(); ++i) {
      ratios.push_back(dense->times[i] / side.times[i]);
    }
    std::printf("%10.2f [%.2f, %.2f]", median(ratios),
                *std::min_element(ratios.begin(), ratios.end()),
                *std::max_element(ratios.begin(), ratios.end()));
  }
  std::printf("\n");
}

// Every side's layers take turns, so that all other sides' bytes pass through the processor before
// a layer is read again.
void print_attention(std::int64_t tokens) {
  constexpr int kRounds = 15, kLayers = 16;
  std::vector<Side> sides;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const Kind& kind : kinds()) sides.push_back({.kind = kind, .dtype = dtype});
  }
  double bytes = 0;
  for (Side& side : sides) {
    for (int i = 0; i < kLayers; ++i) {
      side.layers.push_back(std::make_unique<OpenLayer>(side.kind, tokens, side.dtype));
      bytes += double(side.layers.back()->cache->nbytes());
    }
    attend(side);  // warms up
    side.times.clear();
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Side& side : sides) attend(side);
  }
  std::printf(
      "attention of one query over %ld tokens, %d layers in turn, %d rounds, %d threads; %.0f MB "
      "are read in a round\n%-36s%10s%24s%24s\n",
      long(tokens), kLayers, kRounds, at::get_num_threads(), bytes / 1e6, "", "us a layer",
      "times dense bfloat16", "times dense float32");
  for (const Side& side : sides) print_side(side, sides.front(), sides[sides.size() / 2]);
}

// ---- appending ----------------------------------------------------------------------------------

// Mean of as many tokens again as the layer has seen, so that packing and growth are in it.
double append_us(const Kind& kind, std::int64_t context) {
  const auto cache = make_cache(kind, 1, context, at::kBFloat16);
  const Tokens token(1, at::kBFloat16);
  const double total = microseconds([&] {
    for (std::int64_t i = 0; i < context; ++i) {
      kvcache::Step step = token.begin(*cache);
      step.append(0, token.keys, token.values);
      step.commit();
    }
  });
  return total / double(context);
}

void print_append(std::int64_t tokens) {
  std::vector<std::int64_t> contexts;
  for (std::int64_t context = 1024; context <= 4 * tokens; context *= 4) {
    contexts.push_back(context);
  }
  std::printf("\nmean us a token into one bfloat16 layer at a context of\n%-28s", "");
  for (const std::int64_t context : contexts) std::printf("%10ld", long(context));
  std::printf("%16s\n", "last / first");
  for (const Kind& kind : kinds()) {
    append_us(kind, contexts.front());  // warms up
    std::vector<double> costs;
    for (const std::int64_t context : contexts) costs.push_back(append_us(kind, context));
    std::printf("%-28s", kind.name);
    for (const double cost : costs) std::printf("%10.1f", cost);
    std::printf("%16.2f\n", costs.back() / costs.front());
  }
}

// ---- memory -------------------------------------------------------------------------------------

struct Growth {
  std::int64_t most = 0;       // bytes beyond those before a step, at its peak
  std::int64_t passing = 0;    // of them, those that do not stay
  std::int64_t most_step = 0;  // the step of `most`
};

void decode_token(kvcache::Cache& cache, const Tokens& token, std::int64_t layers) {
  const at::Tensor query = at::randn({1, kQueryHeads, 1, kHeadDim}).to(token.keys.scalar_type());
  kvcache::Step step = token.begin(cache);
  for (std::int64_t i = 0; i < layers; ++i) {
    kvcache::attention(query, step.append(i, token.keys, token.values), {});
  }
  step.commit();
}

Growth growth_of(kvcache::Cache& cache, std::int64_t layers, std::int64_t steps) {
  const Tokens token(1, at::kBFloat16);
  Growth growth;
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t before = bytes_in_use;
    most_in_use = before;
    decode_token(cache, token, layers);
    const std::int64_t most = most_in_use;
    if (most - before > growth.most) {
      growth.most = most - before;
      growth.most_step = i;
    }
    growth.passing = std::max(growth.passing, most - std::max<std::int64_t>(bytes_in_use, before));
  }
  return growth;
}

// Over more steps than an eighth of the context, within which new blocks are begun.
void print_memory(std::int64_t tokens) {
  constexpr std::int64_t kLayers = 8;
  constexpr double kGoal = 5;  // % of the dense cache, less than
  const std::int64_t steps = tokens / 8 + 256;
  const double dense = 2.0 * kLayers * kHeads * kHeadDim * double(tokens) * 2;
  std::printf(
      "\nmemory of a decode step over %ld tokens and more, %ld layers, %ld steps; %% of a dense "
      "bfloat16 cache, %.1f MB\n%-28s%12s%22s%12s%22s\n",
      long(tokens), long(kLayers), long(steps), dense / 1e6, "", "held before",
      "worst step's growth", "goal", "that does not stay");
  for (const Kind& kind : kinds()) {
    const auto cache = make_cache(kind, kLayers, tokens, at::kBFloat16);
    const double held = double(cache->allocated_bytes());
    const Growth growth = growth_of(*cache, kLayers, steps);
    const double worst = 100 * double(growth.most) / dense;
    std::printf("%-28s%12.2f%11.2f (step %4ld)%12s%22.2f\n", kind.name, 100 * held / dense, worst,
                long(growth.most_step), worst < kGoal ? "met" : "NOT met",
                100 * double(growth.passing) / dense);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
  const c10::InferenceMode guard;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::int64_t tokens = 16384;
  std::string_view names[] = {"attention", "append", "memory"};
  bool chosen[] = {false, false, false}, any = false;
  for (int i = 1; i < argc; ++i) {
    const auto* found = std::find(std::begin(names), std::end(names), std::string_view(argv[i]));
    if (found != std::end(names)) {
      chosen[found - names] = any = true;
    } else if (const long number = std::atol(argv[i]); number >= kPiece && number % kPiece == 0) {
      tokens = number;
    } else {
      std::fprintf(stderr,
                   "usage: quantized_bench [attention] [append] [memory] [TOKENS]\n"
                   "TOKENS is a multiple of %ld\n",
                   long(kPiece));
      return 2;
    }
  }
  if (!any || chosen[0]) print_attention(tokens);
  if (!any || chosen[1]) print_append(tokens);
  if (!any || chosen[2]) print_memory(tokens);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
