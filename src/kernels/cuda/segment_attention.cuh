// Attention of a few queries over keys and values in pieces of any kind, on a GPU: plain pointers,
// as src/kernels/cpu/tiles.h has them for the CPU. All of it travels as kernel parameters, so
// nothing is copied to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvcache::kernels::cuda {

enum class Number : std::int8_t { float32, bfloat16, float16 };

// Keys or values of consecutive tokens of all rows and heads. Strides are bytes from one to the
// next; where that of rows is 0, all rows share them.
struct TokenSource {
  enum class Kind : std::int8_t { dense, affine, symmetric, float8 };
  const std::uint8_t* data = nullptr;  // of token 0: numbers or codes; those of a token adjoin
  std::int64_t row = 0, head = 0, token = 0;

  // Of codes, see PackedFormat. All groups of tokens are full, but for the first,
  // which has `lead` tokens, and the last.
  const std::uint8_t* scales = nullptr;   // of the first group: one for each group of channels
  const std::uint8_t* offsets = nullptr;  // with the scales' strides; null where not affine
  std::int64_t parameter_row = 0, parameter_head = 0, parameter_group = 0;
  std::int32_t group_channels = 1, group_tokens = 1, lead = 1;

  std::int32_t dim = 0;  // values of a token and head
  Kind kind = Kind::dense;
  std::int8_t bits = 8;                 // of a code
  Number number = Number::float32;      // of dense ones
  Number parameters = Number::float32;  // float32 or float16
  bool rotated = false;                 // keys: see PackedFormat
};

struct Segment {
  TokenSource keys = {};
  TokenSource values = {};
  std::int64_t tokens = 0;
  std::int64_t column = 0;  // of token 0, in the mask
};

// What one launch takes, in the order of their columns.
constexpr int kSegmentsOfALaunch = 16;
struct Segments {
  Segment each[kSegmentsOfALaunch] = {};
  std::int64_t count = 0;
  std::int64_t first = 0, end = 0;  // columns
  std::int64_t first_split = 0;     // of all of the task
  std::int64_t split_length = 1;    // columns
};

struct Task {
  const void* query = nullptr;  // [batch, kv_heads, rows, key_dim], contiguous
  const float* rotated_query =
      nullptr;             // the same, float32, for rotated keys; null: there are none
  void* result = nullptr;  // [batch, kv_heads, rows, value_dim], contiguous
  // [batch, kv_heads, splits, rows, value_dim + 2]: sums, then sum and maximum
  float* partials = nullptr;
  const bool* allowed = nullptr;  // [batch or 1, tokens, columns]; null: all columns are seen
  std::int64_t allowed_row = 0;   // elements from one row of the batch to the next; 0: all share it
  std::int64_t batch = 0, kv_heads = 0, splits = 0, columns = 0;
  std::int32_t rows = 0;    // query heads of one KV head x tokens
  std::int32_t tokens = 1;  // row r is token r % tokens
  std::int32_t key_dim = 0, value_dim = 0;
  float scale = 1;
  float softcap = 0;                // 0: none
  Number number = Number::float32;  // of query and result
};
static_assert(sizeof(Segments) + sizeof(Task) <= 4096, "kernel parameters take 4 KiB");

// Columns of one block of threads: of few columns 256, of more so many that there are about 64
// blocks for each row and head. It depends on nothing else, so a row's results do not depend on the
// rows beside it.
constexpr std::int64_t split_length_of(std::int64_t columns) {
  const std::int64_t sixty_fourth = (columns + 63) / 64;
  return sixty_fourth <= 256 ? 256 : (sixty_fourth + 31) / 32 * 32;
}

constexpr std::int64_t splits_of(std::int64_t columns, std::int64_t split_length) {
  return (columns + split_length - 1) / split_length;
}

// Launches on `stream` of the current device, without waiting for it: `count` launches that leave
// partials, and one that joins them. What the device cannot do comes back as its error.
cudaError_t attend(const Task& task, const Segments* launches, std::int64_t count,
                   cudaStream_t stream);

}  // namespace kvcache::kernels::cuda
