#include "kernels/cuda/segment_attention.cuh"

#include <algorithm>

#include "kernels/cuda/load_tokens.cuh"

namespace kvcache::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostRows = 32;  // of a block

__device__ float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, step));
  }
  return value;
}

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  }
  return value;
}

// How one block's shared memory is divided, in floats.
struct Plan {
  int rows;      // of a block
  int query_ld;  // from row to row: key_dim, filled up to whole pieces with zeros

  __host__ __device__ Plan(const Task& task, int rows_)
      : rows(rows_), query_ld(pieces_of(task.key_dim) * kPiece) {}

  __host__ __device__ std::int64_t floats(const Task& task) const {
    const int widest = task.key_dim > task.value_dim ? task.key_dim : task.value_dim;
    return std::int64_t{rows} * (query_ld + kTile + task.value_dim + 3) +
           std::int64_t{kTile} * tile_ld(widest);
  }
};

struct Shared {
  float* query;    // [rows, query_ld], scaled
  float* weights;  // [rows, kTile]
  float* sums;     // [rows, value_dim]
  float* sum;      // [rows]
  float* maximum;  // [rows]
  float* fade;     // [rows]: what earlier sums are multiplied by
  float* tile;     // [kTile, tile_ld(key_dim or value_dim)]

  __device__ Shared(float* memory, const Task& task, const Plan& plan) {
    query = memory;
    weights = query + plan.rows * plan.query_ld;
    sums = weights + plan.rows * kTile;
    sum = sums + plan.rows * task.value_dim;
    maximum = sum + plan.rows;
    fade = maximum + plan.rows;
    tile = fade + plan.rows;
  }
};

// The part of a task that a block has.
struct Part {
  std::int64_t row, head;  // of the batch, of KV heads
  int first_row, rows;     // of the task's
};

// Where the query of a part lies, [rows, key_dim], in elements of the task's.
__device__ std::int64_t query_of(const Task& task, const Part& part) {
  return ((part.row * task.kv_heads + part.head) * task.rows + part.first_row) * task.key_dim;
}

__device__ void load_query(const Task& task, const Part& part, const Plan& plan, bool rotated,
                           float* query) {
  const std::int64_t from = query_of(task, part);
  const void* given = rotated ? task.rotated_query : task.query;
  const Number number = rotated ? Number::float32 : task.number;
  for (int i = threadIdx.x; i < part.rows * plan.query_ld; i += kThreads) {
    const int r = i / plan.query_ld, c = i % plan.query_ld;
    query[i] = c < task.key_dim ? number_at(given, number, from + r * task.key_dim + c) * task.scale
                                : 0.0F;
  }
}

// query * key, of one row and the tile's token `lane`.
__device__ float score_of(const float* query, const float* key, int pieces) {
  float score = 0;
  for (int piece = 0; piece < pieces; ++piece) {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      score += query[piece * kPiece + j] * key[piece * (kPiece + 1) + j];
    }
  }
  return score;
}

// Scores of a tile, capped and hidden, become weights; a warp has a row at a time, a lane a token.
__device__ void weigh(const Task& task, const Part& part, const Plan& plan, const Shared& shared,
                      std::int64_t column, int count) {
  const int lane = threadIdx.x % 32, pieces = pieces_of(task.key_dim);
  for (int r = threadIdx.x / 32; r < part.rows; r += kThreads / 32) {
    float score = -INFINITY;
    if (lane < count) {
      const std::int64_t token = (part.first_row + r) % task.tokens;
      const bool seen =
          task.allowed == nullptr ||
          task.allowed[part.row * task.allowed_row + token * task.columns + column + lane];
      if (seen) {
        score = score_of(shared.query + r * plan.query_ld,
                         shared.tile + lane * tile_ld(task.key_dim), pieces);
        if (task.softcap > 0) score = task.softcap * tanhf(score / task.softcap);
      }
    }
    const float before = shared.maximum[r];
    const float maximum = fmaxf(before, warp_max(score));
    const bool nothing = maximum == -INFINITY;
    const float weight = nothing ? 0.0F : expf(score - maximum);
    const float total = warp_sum(weight);
    shared.weights[r * kTile + lane] = weight;
    __syncwarp();  // all lanes have read the maximum before
    if (lane == 0) {
      const float fade = nothing ? 1.0F : expf(before - maximum);
      shared.fade[r] = fade;
      shared.sum[r] = shared.sum[r] * fade + total;
      shared.maximum[r] = maximum;
    }
  }
}

// Adds the tile's values by their weights.
__device__ void add_values(const Task& task, const Part& part, const Shared& shared, int count) {
  const int ld = tile_ld(task.value_dim);
  for (int i = threadIdx.x; i < part.rows * task.value_dim; i += kThreads) {
    const int r = i / task.value_dim, c = i % task.value_dim;
    const float* weights = shared.weights + r * kTile;
    const float* values = shared.tile + in_tile(c);
    float sum = shared.sums[i] * shared.fade[r];
    for (int k = 0; k < count; ++k) sum += weights[k] * values[k * ld];
    shared.sums[i] = sum;
  }
}

__device__ void store_partials(const Task& task, const Part& part, const Shared& shared,
                               std::int64_t split) {
  const int width = task.value_dim + 2;
  const std::int64_t of_head = part.row * task.kv_heads + part.head;
  float* out =
      task.partials + ((of_head * task.splits + split) * task.rows + part.first_row) * width;
  for (int i = threadIdx.x; i < part.rows * task.value_dim; i += kThreads) {
    out[i / task.value_dim * width + i % task.value_dim] = shared.sums[i];
  }
  for (int r = threadIdx.x; r < part.rows; r += kThreads) {
    out[r * width + task.value_dim] = shared.sum[r];
    out[r * width + task.value_dim + 1] = shared.maximum[r];
  }
}

// One split of the columns for some rows of one KV head and row of the batch. Blocks [splits x
// blocks of rows, kv_heads, batch].
__global__ void __launch_bounds__(kThreads)
    attend_split(const __grid_constant__ Task task, const __grid_constant__ Segments segments,
                 const int rows_of_a_block) {
  extern __shared__ float memory[];
  const int row_blocks = (task.rows + rows_of_a_block - 1) / rows_of_a_block;
  const std::int64_t split = blockIdx.x / row_blocks;
  const int first_row = static_cast<int>(blockIdx.x % row_blocks) * rows_of_a_block;
  const Part part{.row = blockIdx.z,
                  .head = blockIdx.y,
                  .first_row = first_row,
                  .rows = min(rows_of_a_block, task.rows - first_row)};
  const Plan plan(task, rows_of_a_block);
  const Shared shared(memory, task, plan);
  bool rotated = segments.each[0].keys.rotated;
  load_query(task, part, plan, rotated, shared.query);
  for (int i = threadIdx.x; i < part.rows * task.value_dim; i += kThreads) shared.sums[i] = 0;
  for (int i = threadIdx.x; i < part.rows; i += kThreads) {
    shared.sum[i] = 0;
    shared.maximum[i] = -INFINITY;
  }
  __syncthreads();
  const std::int64_t begin = segments.first + split * segments.split_length;
  const std::int64_t end = min(begin + segments.split_length, segments.end);
  for (int s = 0; s < segments.count; ++s) {
    const Segment& segment = segments.each[s];
    if (segment.keys.rotated != rotated) {
      rotated = segment.keys.rotated;
      load_query(task, part, plan, rotated, shared.query);
      __syncthreads();
    }
    const std::int64_t last = min(end - segment.column, segment.tokens);
    for (std::int64_t t = max(begin - segment.column, std::int64_t{0}); t < last; t += kTile) {
      const int count = static_cast<int>(min(std::int64_t{kTile}, last - t));
      load_tile(segment.keys, part.row, part.head, t, count, shared.tile);
      __syncthreads();
      weigh(task, part, plan, shared, segment.column + t, count);
      __syncthreads();
      load_tile(segment.values, part.row, part.head, t, count, shared.tile);
      __syncthreads();
      add_values(task, part, shared, count);
      __syncthreads();
    }
  }
  store_partials(task, part, shared, segments.first_split + split);
}

// The splits of one query row as one. A row that saw nothing becomes NaN, as softmax over nothing.
// Blocks [rows, kv_heads, batch].
__global__ void __launch_bounds__(kThreads) join_splits(const __grid_constant__ Task task) {
  const std::int64_t r = blockIdx.x, of_head = blockIdx.z * task.kv_heads + blockIdx.y;
  const std::int64_t width = task.value_dim + 2;
  const float* parts = task.partials + (of_head * task.splits * task.rows + r) * width;
  const std::int64_t next = task.rows * width;  // floats from split to split
  float maximum = -INFINITY;
  for (std::int64_t s = 0; s < task.splits; ++s) {
    maximum = fmaxf(maximum, parts[s * next + task.value_dim + 1]);
  }
  const std::int64_t out = (of_head * task.rows + r) * task.value_dim;
  for (int c = threadIdx.x; c < task.value_dim; c += kThreads) {
    float value = 0, sum = 0;
    for (std::int64_t s = 0; s < task.splits; ++s) {
      const float* part = parts + s * next;
      const float weight = expf(part[task.value_dim + 1] - maximum);
      value += weight * part[c];
      sum += weight * part[task.value_dim];
    }
    store_number(task.result, task.number, out + c, value / sum);
  }
}

// Shared memory that a block may have, in bytes.
cudaError_t most_shared_memory(int& bytes) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

dim3 grid_of(std::int64_t x, std::int64_t y, std::int64_t z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

}  // namespace

cudaError_t attend(const Task& task, const Segments* launches, std::int64_t count,
                   cudaStream_t stream) {
  int most = 0;
  if (const cudaError_t error = most_shared_memory(most); error != cudaSuccess) return error;
  int rows = std::min(task.rows, kMostRows);
  const auto bytes = [&] {
    return static_cast<std::size_t>(Plan(task, rows).floats(task)) * sizeof(float);
  };
  while (rows > 1 && bytes() > static_cast<std::size_t>(most)) --rows;
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (bytes() > kWithoutAsking) {
    // Always the same number, as another thread may be about to launch.
    const cudaError_t error =
        cudaFuncSetAttribute(attend_split, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (error != cudaSuccess) return error;
  }
  const std::int64_t row_blocks = (task.rows + rows - 1) / rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const Segments& launch = launches[i];
    const std::int64_t splits = splits_of(launch.end - launch.first, launch.split_length);
    const dim3 grid = grid_of(splits * row_blocks, task.kv_heads, task.batch);
    attend_split<<<grid, kThreads, bytes(), stream>>>(task, launch, rows);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  join_splits<<<grid_of(task.rows, task.kv_heads, task.batch), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace kvcache::kernels::cuda
