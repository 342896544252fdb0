// Attention of a few queries over keys and values that lie in pieces of any kind: plain pointers,
// one row of the batch and one KV head at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvcache::kernels {

constexpr std::int64_t kMostHeadDim = 512;  // values of a token and head

// Consecutive tokens that share scales and offsets.
struct GroupOfTokens {
  std::int64_t index = 0;
  std::int64_t end = 0;  // the token after them
};

// Keys or values of consecutive tokens of one row and head.
struct TokenSource {
  enum class Kind { float32, bfloat16, float16, affine, symmetric, float8 };
  Kind kind = Kind::float32;
  const std::uint8_t* data = nullptr;  // of token 0: numbers or codes
  std::int64_t stride = 0;             // bytes from token to token
  std::int64_t dim = 0;                // values of a token

  // Of codes; see PackedFormat.
  int bits = 8;
  std::int64_t group_channels = 1;
  const std::uint8_t* scales =
      nullptr;  // of the first group of tokens: channel groups side by side
  const std::uint8_t* offsets = nullptr;     // likewise; null where not affine
  std::int64_t parameter_stride = 0;         // bytes from one group of tokens to the next
  bool half_parameters = false;              // float16, else float32
  std::int64_t group_tokens = 1;             // of every group, but see group_ends
  const std::int64_t* group_ends = nullptr;  // where the groups have not as many: the ends of all
  std::int64_t group_count = 0;              // of group_ends

  std::int64_t parameter_size() const { return half_parameters ? 2 : 4; }

  GroupOfTokens group_at(std::int64_t token) const {
    if (group_ends == nullptr) {
      const std::int64_t index = token / group_tokens;
      return {.index = index, .end = (index + 1) * group_tokens};
    }
    const std::int64_t* end = std::upper_bound(group_ends, group_ends + group_count, token);
    return {.index = end - group_ends, .end = *end};
  }
};

struct SegmentSource {
  TokenSource keys;
  TokenSource values;
  std::int64_t tokens = 0;
  std::int64_t column = 0;  // of token 0, in the mask
  bool rotated = false;     // the keys: see PackedFormat
};

// Query heads of one KV head and the tokens of a step: `rows` = group * tokens of them.
struct AttentionTask {
  const float* query = nullptr;          // [rows, key_dim], scaled
  const float* rotated_query = nullptr;  // the same for rotated keys; null: there are none
  std::int64_t rows = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  const SegmentSource* segments = nullptr;
  std::int64_t segment_count = 0;
  std::int64_t first = 0;  // columns to attend to: [first, end)
  std::int64_t end = 0;
  const bool* allowed = nullptr;  // [tokens, columns]; null: every query sees every column
  std::int64_t columns = 0;
  std::int64_t tokens = 1;  // row r is token r % tokens
  float softcap = 0;        // 0: none

  // Results, without the other columns: sum over columns of exp(score - maximum) * value, of
  // exp(score - maximum), and the maximum (-infinity: nothing was seen).
  float* values = nullptr;  // [rows, value_dim]
  float* sums = nullptr;    // [rows]
  float* maxima = nullptr;  // [rows]
};

// With the widest vectors of this processor.
void attend(const AttentionTask& task);

// Tokens [first, first + count) as float32 [count, ld], ld >= dim; zeros from dim on.
void load_tokens(const TokenSource& source, std::int64_t first, std::int64_t count, float* out,
                 std::int64_t ld);

}  // namespace kvcache::kernels
