// How long does one token's attention take on a GPU over 4-bit keys and values, and over bfloat16?
//
// 8 KV heads of 128 with 4 query heads each, bfloat16 queries. `sdpa` is LibTorch's kernel on dense
// bfloat16 with enable_gqa, `dense` this library's attention() on the same, `packed` the operator
// on 4 bits in groups of 64 channels, `packed by channel` with keys in groups of 64 tokens. Calls
// go round over as many layers' caches as make 512 MiB packed (256 at most), so that little of them
// lies in the GPU's cache. Timed with events around a round, five rounds after two for warmth; the
// median of a call is printed, and written as JSON to the file that is the first argument, if any.
// Exit code 77: there is no CUDA device.

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/attention/attention.h"

namespace {

constexpr std::int64_t kHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr std::int64_t kGrouped = 64;  // channels or tokens
constexpr std::int64_t kPackedBytes = std::int64_t{512} << 20;
constexpr int kWarm = 2, kRounds = 5;
const at::Device kGpu(at::kCUDA, 0);

using kvcache::PackedFormat;
using kvcache::PackedStates;
using kvcache::View;

struct Size {
  std::int64_t batch, tokens;

  std::int64_t numbers() const { return 2 * batch * kHeads * tokens * kHeadDim; }
  std::int64_t layers() const {
    return std::clamp<std::int64_t>(kPackedBytes / (numbers() / 2), 2, 256);
  }
};

struct Row {
  std::string form;
  Size size;
  double microseconds;  // a call
  double gigabytes;     // of keys and values read, a second
};

std::int64_t bytes_of(const View& view) {
  std::int64_t bytes = 0;
  for (const kvcache::Segment& segment : view.segments) {
    if (!segment.packed) {
      bytes += static_cast<std::int64_t>(segment.keys.nbytes() + segment.values.nbytes());
      continue;
    }
    for (const PackedStates* side : {&segment.packed->keys, &segment.packed->values}) {
      bytes += static_cast<std::int64_t>(side->codes.nbytes() + side->scales.nbytes() +
                                         side->offsets.nbytes());
    }
  }
  return bytes;
}

at::Tensor random_states(const Size& size, std::int64_t heads, std::int64_t tokens) {
  return at::randn({size.batch, heads, tokens, kHeadDim},
                   at::TensorOptions().dtype(at::kBFloat16).device(kGpu));
}

View dense_view(const Size& size) {
  View view{.segments = {}, .visible = {.length = size.tokens}, .batch = size.batch};
  view.segments.push_back({.keys = random_states(size, kHeads, size.tokens),
                           .values = random_states(size, kHeads, size.tokens)});
  return view;
}

PackedStates random_codes(const Size& size, bool by_channel) {
  const PackedFormat format{.bits = 4,
                            .head_dim = kHeadDim,
                            .group_channels = by_channel ? 1 : kGrouped,
                            .group_tokens = by_channel ? kGrouped : 1,
                            .parameter_dtype = at::kHalf};
  const std::int64_t groups = (size.tokens + format.group_tokens - 1) / format.group_tokens;
  const auto parameters = [&](double value) {
    return at::full({size.batch, kHeads, groups, format.channel_groups()}, value,
                    at::TensorOptions().dtype(at::kHalf).device(kGpu));
  };
  return {.format = format,
          .codes = at::randint(256, {size.batch, kHeads, size.tokens, format.code_bytes()},
                               at::TensorOptions().dtype(at::kByte).device(kGpu)),
          .scales = parameters(0.4),
          .offsets = parameters(-3)};
}

View packed_view(const Size& size, bool by_channel) {
  View view{.segments = {}, .visible = {.length = size.tokens}, .batch = size.batch};
  view.segments.push_back(
      {.packed = std::make_shared<kvcache::PackedKeyValue>(kvcache::PackedKeyValue{
           random_codes(size, by_channel), random_codes(size, false), at::kBFloat16})});
  return view;
}

// Microseconds of a call, the median of the rounds.
double timed(const std::vector<View>& layers, const std::function<void(const View&)>& call) {
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  std::vector<double> rounds;
  for (int round = 0; round < kWarm + kRounds; ++round) {
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    gpu.synchronizeDevice(kGpu.index());
    begin.record(gpu.getStream(kGpu));
    for (const View& layer : layers) call(layer);
    end.record(gpu.getStream(kGpu));
    end.synchronize();
    if (round >= kWarm) rounds.push_back(1e3 * begin.elapsedTime(end));
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2] / static_cast<double>(layers.size());
}

std::vector<Row> rows_of(const Size& size) {
  const at::Tensor query = random_states(size, kHeads * kGroup, 1);
  const auto attend = [&](const View& view) { kvcache::attention(query, view, {}); };
  const auto sdpa = [&](const View& view) {
    at::scaled_dot_product_attention(query, view.segments[0].keys, view.segments[0].values, {}, 0.0,
                                     false, std::nullopt, true);
  };
  std::vector<Row> rows;
  const auto measure = [&](const std::string& form, const std::vector<View>& layers,
                           const std::function<void(const View&)>& call) {
    const double microseconds = timed(layers, call);
    rows.push_back(
        {form, size, microseconds, static_cast<double>(bytes_of(layers[0])) / microseconds / 1e3});
  };
  const auto filled = [&](const std::function<View()>& make) {
    std::vector<View> layers;
    for (std::int64_t i = 0; i < size.layers(); ++i) layers.push_back(make());
    return layers;
  };
  {
    const std::vector<View> dense = filled([&] { return dense_view(size); });
    measure("sdpa", dense, sdpa);
    measure("dense", dense, attend);
  }
  measure("packed", filled([&] { return packed_view(size, false); }), attend);
  measure("packed by channel", filled([&] { return packed_view(size, true); }), attend);
  return rows;
}

bool write_json(const char* path, const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    text += fmt::format(
        R"({}{{"form": "{}", "batch": {}, "tokens": {}, "layers": {}, "microseconds": {:.2f}, )"
        R"("gigabytes_per_second": {:.1f}}})",
        text.empty() ? "" : ",\n ", row.form, row.size.batch, row.size.tokens, row.size.layers(),
        row.microseconds, row.gigabytes);
  }
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return false;
  const bool written = std::fputs(("[" + text + "]\n").c_str(), file) >= 0;
  return std::fclose(file) == 0 && written;
}

}  // namespace

int main(int argc, char** argv) {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA) ||
      c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() == 0) {
    std::puts("no CUDA device is found");
    return 77;
  }
  if (!kvcache::detail::has_segment_attention(kGpu)) {
    std::puts("this program was linked without kvcache::cuda");
    return 1;
  }
  std::vector<Row> all;
  fmt::print("{:<20}{:>7}{:>9}{:>14}{:>9}\n", "form", "batch", "tokens", "us a call", "GB/s");
  for (const std::int64_t batch : {1, 8}) {
    for (const std::int64_t tokens : {1024, 4096, 16384, 65536}) {
      for (const Row& row : rows_of({.batch = batch, .tokens = tokens})) {
        fmt::print("{:<20}{:>7}{:>9}{:>14.1f}{:>9.0f}\n", row.form, batch, tokens, row.microseconds,
                   row.gigabytes);
        std::fflush(stdout);
        all.push_back(row);
      }
    }
  }
  if (argc > 1 && !write_json(argv[1], all)) {
    fmt::print(stderr, "cannot write {}\n", argv[1]);
    return 1;
  }
  return 0;
}
