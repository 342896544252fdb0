#include "kvcache/kernels/segment_attention.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cpu/tiles.h"
#include "kernels/parallel.h"
#include "kernels/segment_layout.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/rotation.h"

namespace kvcache::detail {

static_assert(kMostHeadDim == kernels::kMostHeadDim);

namespace {

using kernels::AttentionTask;
using kernels::SegmentSource;
using kernels::TokenSource;

// Columns of a task, at most: what is divided among threads, however many there are, so that
// results do not depend on their number.
constexpr std::int64_t kColumnsOfATask = 512;

TokenSource::Kind kind_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return TokenSource::Kind::float32;
    case at::kBFloat16:
      return TokenSource::Kind::bfloat16;
    case at::kHalf:
      return TokenSource::Kind::float16;
    default:
      throw ValueError(
          c10::str("attention over segments takes float32, bfloat16 and float16, not ", dtype));
  }
}

TokenSource::Kind kind_of(PackedFormat::Kind kind) {
  switch (kind) {
    case PackedFormat::Kind::float8:
      return TokenSource::Kind::float8;
    case PackedFormat::Kind::symmetric:
      return TokenSource::Kind::symmetric;
    case PackedFormat::Kind::affine:
      break;
  }
  return TokenSource::Kind::affine;
}

// Where the groups of tokens end; empty: all have as many.
std::vector<std::int64_t> group_ends_of(const SideLayout& side) {
  std::vector<std::int64_t> ends(side.valid.size());
  std::partial_sum(side.valid.begin(), side.valid.end(), ends.begin());
  return ends;
}

const std::uint8_t* at_row(const at::Tensor& t, std::int64_t row, std::int64_t head) {
  const std::int64_t shared = t.size(0) == 1 ? 0 : row;
  return static_cast<const std::uint8_t*>(t.const_data_ptr()) +
         (shared * t.stride(0) + head * t.stride(1)) * t.element_size();
}

// A segment and where its tokens belong.
struct PreparedSegment {
  SegmentSides sides;
  std::vector<std::int64_t> key_group_ends, value_group_ends;  // see group_ends_of()
};

TokenSource source_of(const SideLayout& side, const std::vector<std::int64_t>& group_ends,
                      std::int64_t row, std::int64_t head) {
  TokenSource source{.data = at_row(side.data, row, head),
                     .stride = side.data.stride(2) * side.data.element_size()};
  if (!side.packed) {
    source.kind = kind_of(side.data.scalar_type());
    source.dim = side.data.size(3);
    return source;
  }
  source.kind = kind_of(side.format.kind);
  source.dim = side.format.head_dim;
  source.bits = static_cast<int>(side.format.bits);
  source.group_channels = side.format.group_channels;
  source.scales = at_row(side.scales, row, head);
  if (side.format.has_offsets()) source.offsets = at_row(side.offsets, row, head);
  source.parameter_stride = side.scales.stride(2) * side.scales.element_size();
  source.half_parameters = side.scales.scalar_type() == at::kHalf;
  source.group_tokens = side.format.group_tokens;
  source.group_ends = group_ends.empty() ? nullptr : group_ends.data();
  source.group_count = static_cast<std::int64_t>(group_ends.size());
  return source;
}

// What one task leaves: see AttentionTask.
struct Partial {
  std::vector<float> values, sums, maxima;
};

// The parts of a row and head as one, in order.
void join(const Partial* parts, std::int64_t count, std::int64_t rows, std::int64_t dim,
          float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
    for (std::int64_t p = 0; p < count; ++p) maximum = std::max(maximum, parts[p].maxima[at]);
    float* row = out + r * dim;
    std::fill(row, row + dim, 0.0F);
    for (std::int64_t p = 0; p < count; ++p) {
      const float weight = std::exp(parts[p].maxima[at] - maximum);
      if (weight == 0) continue;
      sum += weight * parts[p].sums[at];
      const float* values = parts[p].values.data() + r * dim;
      for (std::int64_t c = 0; c < dim; ++c) row[c] += weight * values[c];
    }
    for (std::int64_t c = 0; c < dim; ++c) row[c] /= sum;
  }
}

// One call on the CPU, in tasks that may run side by side: those of a row, a KV head and some
// columns.
class CpuCall {
 public:
  // `query` in float32, scaled.
  CpuCall(const at::Tensor& query, const std::vector<SegmentSides>& segments,
          const at::Tensor& allowed, double softcap)
      : query_(query),
        allowed_(allowed),
        softcap_(static_cast<float>(softcap)),
        batch_(query.size(0)),
        heads_(segments[0].keys.data.size(1)),
        tokens_(query.size(2)),
        rows_(query.size(1) / heads_ * tokens_),
        value_dim_(segments[0].values.dim()) {
    bool any_rotated = false;
    for (SegmentSides sides : segments) {
      put_together(sides.keys);
      put_together(sides.values);
      columns_ += sides.keys.tokens();
      any_rotated = any_rotated || sides.keys.format.rotated;
      segments_.push_back({.sides = sides,
                           .key_group_ends = group_ends_of(sides.keys),
                           .value_group_ends = group_ends_of(sides.values)});
    }
    if (any_rotated) rotated_query_ = rotated(query_).contiguous();
    splits_ = (columns_ + kColumnsOfATask - 1) / kColumnsOfATask;
    if (splits_ > 0) columns_of_split_ = (columns_ + splits_ - 1) / splits_;
    partials_.resize(static_cast<std::size_t>(batch_ * heads_ * splits_));
  }

  // float32 [batch, heads, tokens, value_dim]
  at::Tensor run() {
    at::parallel_for(0, batch_ * heads_ * splits_, 1, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t index = first; index < end; ++index) run_task(index);
    });
    at::Tensor result = at::empty({batch_, query_.size(1), tokens_, value_dim_}, query_.options());
    for (std::int64_t i = 0; i < batch_ * heads_; ++i) {
      join(partials_.data() + i * splits_, splits_, rows_, value_dim_,
           result.data_ptr<float>() + i * rows_ * value_dim_);
    }
    return result;
  }

 private:
  // Those of a row and head that have some of the columns [first, end).
  std::vector<SegmentSource> sources_of(std::int64_t row, std::int64_t head, std::int64_t first,
                                        std::int64_t end) const {
    std::vector<SegmentSource> sources;
    std::int64_t column = 0;
    for (const PreparedSegment& segment : segments_) {
      const std::int64_t length = segment.sides.keys.tokens();
      if (column < end && column + length > first) {
        sources.push_back(
            {.keys = source_of(segment.sides.keys, segment.key_group_ends, row, head),
             .values = source_of(segment.sides.values, segment.value_group_ends, row, head),
             .tokens = length,
             .column = column,
             .rotated = segment.sides.keys.format.rotated});
      }
      column += length;
    }
    return sources;
  }

  void run_task(std::int64_t index) {
    const std::int64_t split = index % splits_, head = index / splits_ % heads_;
    const std::int64_t row = index / splits_ / heads_;
    const std::int64_t first = std::min(split * columns_of_split_, columns_);
    const std::int64_t last = std::min(first + columns_of_split_, columns_);
    const std::vector<SegmentSource> sources = sources_of(row, head, first, last);
    Partial& partial = partials_[static_cast<std::size_t>(index)];
    partial.values.resize(static_cast<std::size_t>(rows_ * value_dim_));
    partial.sums.resize(static_cast<std::size_t>(rows_));
    partial.maxima.resize(static_cast<std::size_t>(rows_));
    const std::int64_t key_dim = query_.size(3);
    const auto queries = [&](const at::Tensor& all) -> const float* {
      if (!all.defined()) return nullptr;
      return all.const_data_ptr<float>() + (row * heads_ + head) * rows_ * key_dim;
    };
    const std::int64_t mask_row = allowed_.defined() && allowed_.size(0) > 1 ? row : 0;
    kernels::attend({.query = queries(query_),
                     .rotated_query = queries(rotated_query_),
                     .rows = rows_,
                     .key_dim = key_dim,
                     .value_dim = value_dim_,
                     .segments = sources.data(),
                     .segment_count = static_cast<std::int64_t>(sources.size()),
                     .first = first,
                     .end = last,
                     .allowed = allowed_.defined() ? allowed_.const_data_ptr<bool>() +
                                                         mask_row * tokens_ * columns_
                                                   : nullptr,
                     .columns = columns_,
                     .tokens = tokens_,
                     .softcap = softcap_,
                     .values = partial.values.data(),
                     .sums = partial.sums.data(),
                     .maxima = partial.maxima.data()});
  }

  at::Tensor query_, rotated_query_;  // float32 [batch, heads, tokens, key_dim], scaled
  std::vector<PreparedSegment> segments_;
  at::Tensor allowed_;  // bool [batch or 1, 1, tokens, columns], or undefined
  float softcap_;
  std::int64_t batch_, heads_, tokens_;
  std::int64_t rows_;  // of a KV head
  std::int64_t value_dim_, columns_ = 0;
  std::int64_t splits_ = 0,
               columns_of_split_ = 0;  // tasks of a row and head; the last may be smaller
  std::vector<Partial> partials_;
};

at::Tensor segment_attention_cpu(const at::Tensor& query, at::TensorList parts,
                                 at::IntArrayRef numbers, const std::optional<at::Tensor>& mask,
                                 double scale, double softcap) {
  const std::vector<SegmentSides> segments = segments_of(parts, numbers);
  check_segments(segments, {query, mask});
  CpuCall call(query.to(at::kFloat).mul(scale).contiguous(), segments,
               mask ? mask->contiguous() : at::Tensor(), softcap);
  return call.run().to(query.scalar_type());
}

at::Tensor segment_attention_meta(const at::Tensor& query, at::TensorList parts,
                                  at::IntArrayRef numbers, const std::optional<at::Tensor>& mask,
                                  double, double) {
  const std::vector<SegmentSides> segments = segments_of(parts, numbers);
  check_segments(segments, {query, mask});
  return at::empty({query.size(0), query.size(1), query.size(2), segments[0].values.dim()},
                   query.options());
}

const auto& segment_attention_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("kvcache::segment_attention", "")
                             .typed<at::Tensor(const at::Tensor&, at::TensorList, at::IntArrayRef,
                                               const std::optional<at::Tensor>&, double, double)>();
  return op;
}

}  // namespace

bool has_segment_attention(at::Device device) {
  return segment_attention_operator().hasComputedKernelForDispatchKey(
      c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

at::Tensor segment_attention(const at::Tensor& query, const View& view,
                             const SegmentAttentionOptions& options) {
  const auto& op = segment_attention_operator();
  const SegmentLayout layout = layout_of(view);
  return op.call(query, layout.parts, layout.numbers, options.allowed, options.scale,
                 options.softcap.value_or(0));
}

}  // namespace kvcache::detail

TORCH_LIBRARY(kvcache, m) {
  m.def(
      "segment_attention(Tensor query, Tensor[] parts, int[] layout, Tensor? mask, float scale, "
      "float softcap) -> Tensor");
}

TORCH_LIBRARY_IMPL(kvcache, CPU, m) {
  m.impl("segment_attention", kvcache::detail::segment_attention_cpu);
}

TORCH_LIBRARY_IMPL(kvcache, Meta, m) {
  m.impl("segment_attention", kvcache::detail::segment_attention_meta);
}
