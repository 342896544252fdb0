// Tokens of any kind of source as float32 in shared memory. Included by device code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/segment_attention.cuh"

namespace kvcache::kernels::cuda {

constexpr int kTile = 32;  // tokens, of which a warp's lane has one each
constexpr int kPiece = 8;  // channels that a thread reads at once: codes of whole bytes

__host__ __device__ constexpr int pieces_of(int dim) { return (dim + kPiece - 1) / kPiece; }

// A tile is float32 [kTile, tile_ld(dim)]: pieces lie kPiece + 1 apart and rows an odd number, so
// that the threads of a warp meet different banks, whether each has a piece or each has a token.
__host__ __device__ constexpr int tile_ld(int dim) { return (pieces_of(dim) * (kPiece + 1)) | 1; }

__device__ constexpr int in_tile(int channel) { return channel + channel / kPiece; }

__device__ inline float number_at(const void* from, Number number, std::int64_t index) {
  switch (number) {
    case Number::bfloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[index]);
    case Number::float16:
      return __half2float(static_cast<const __half*>(from)[index]);
    default:
      return static_cast<const float*>(from)[index];
  }
}

__device__ inline void store_number(void* to, Number number, std::int64_t index, float value) {
  switch (number) {
    case Number::bfloat16:
      static_cast<__nv_bfloat16*>(to)[index] = __float2bfloat16(value);
      return;
    case Number::float16:
      static_cast<__half*>(to)[index] = __float2half(value);
      return;
    default:
      static_cast<float*>(to)[index] = value;
  }
}

__device__ inline bool is_aligned(const void* at, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

// `count` numbers, at most kPiece, the rest zeros.
template <typename T>
__device__ void read_numbers(const std::uint8_t* from, int count, float (&values)[kPiece]) {
  alignas(16) T numbers[kPiece];
  if (count == kPiece && is_aligned(from, 16)) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof numbers / sizeof(uint4)); ++i) {
      reinterpret_cast<uint4*>(numbers)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      numbers[i] = i < count ? reinterpret_cast<const T*>(from)[i] : T(0.0F);
    }
  }
#pragma unroll
  for (int i = 0; i < kPiece; ++i) values[i] = static_cast<float>(numbers[i]);
}

// Up to 8 bytes as one word, the first one lowest.
__device__ inline std::uint64_t read_word(const std::uint8_t* from, int bytes) {
  if (bytes == 8 && is_aligned(from, 8)) return *reinterpret_cast<const std::uint64_t*>(from);
  if (bytes == 4 && is_aligned(from, 4)) return *reinterpret_cast<const std::uint32_t*>(from);
  std::uint64_t word = 0;
  for (int i = 0; i < bytes; ++i) word |= std::uint64_t{from[i]} << (8 * i);
  return word;
}

__device__ inline float float8_of(unsigned code) {
  __nv_fp8_e4m3 number;
  number.__x = static_cast<__nv_fp8_storage_t>(code);
  return static_cast<float>(number);
}

// value = offset + number of the code * scale
struct Parameters {
  float scale;
  float offset;
};

// Those of channel group `index`; `group` is where its group of tokens starts, in bytes.
__device__ inline Parameters parameters_at(const TokenSource& source, std::int64_t group,
                                           int index) {
  const float scale = number_at(source.scales + group, source.parameters, index);
  if (source.kind == TokenSource::Kind::symmetric) {
    return {scale, -static_cast<float>(1 << (source.bits - 1)) * scale};
  }
  if (source.offsets == nullptr) return {scale, 0.0F};
  return {scale, number_at(source.offsets + group, source.parameters, index)};
}

// Channels [channel, channel + count) of a token whose codes begin at `from`.
__device__ inline void read_codes(const TokenSource& source, const std::uint8_t* from,
                                  std::int64_t group, int channel, int count,
                                  float (&values)[kPiece]) {
  const int bits = source.bits;
  const std::uint64_t word = read_word(from + channel * bits / 8, (count * bits + 7) / 8);
  const unsigned mask = (1U << bits) - 1;
  int index = channel / source.group_channels;
  int left = (index + 1) * source.group_channels - channel;  // channels of this group
  Parameters parameters = parameters_at(source, group, index);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    if (i >= count) {
      values[i] = 0;
      continue;
    }
    if (left == 0) {
      parameters = parameters_at(source, group, ++index);
      left = source.group_channels;
    }
    --left;
    const unsigned code = static_cast<unsigned>(word >> (i * bits)) & mask;
    const float number =
        source.kind == TokenSource::Kind::float8 ? float8_of(code) : static_cast<float>(code);
    values[i] = number * parameters.scale + parameters.offset;
  }
}

// The group of a token: all groups are full, but for the first and the last.
__device__ inline std::int64_t group_of(const TokenSource& source, std::int64_t token) {
  if (source.group_tokens == 1) return token;
  return token < source.lead ? 0 : 1 + (token - source.lead) / source.group_tokens;
}

// Tokens [first, first + count) of a row and head, as a tile; channels from dim on, up to a whole
// piece, are zeros. By all threads of a block, `count` at most kTile.
__device__ inline void load_tile(const TokenSource& source, std::int64_t row, std::int64_t head,
                                 std::int64_t first, int count, float* tile) {
  const std::uint8_t* data = source.data + row * source.row + head * source.head;
  const std::int64_t of_head = row * source.parameter_row + head * source.parameter_head;
  const int pieces = pieces_of(source.dim), ld = tile_ld(source.dim);
  for (int i = static_cast<int>(threadIdx.x); i < count * pieces;
       i += static_cast<int>(blockDim.x)) {
    const int token = i / pieces, piece = i % pieces;
    const int channel = piece * kPiece, left = min(kPiece, source.dim - channel);
    const std::uint8_t* from = data + (first + token) * source.token;
    float values[kPiece];
    if (source.kind != TokenSource::Kind::dense) {
      const std::int64_t group = group_of(source, first + token) * source.parameter_group;
      read_codes(source, from, of_head + group, channel, left, values);
    } else if (source.number == Number::bfloat16) {
      read_numbers<__nv_bfloat16>(from + channel * 2, left, values);
    } else if (source.number == Number::float16) {
      read_numbers<__half>(from + channel * 2, left, values);
    } else {
      read_numbers<float>(from + channel * 4, left, values);
    }
    float* out = tile + token * ld + in_tile(channel);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) out[j] = values[j];
  }
}

}  // namespace kvcache::kernels::cuda
