// Segments of an operator's call as the kernels take them. Of the host; knows no CUDA call.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/segment_attention.cuh"
#include "kernels/segment_layout.h"

namespace kvcache::kernels::cuda {

struct Launches {
  std::vector<Segments> each;
  std::int64_t splits = 0;   // of all of them
  std::int64_t columns = 0;  // likewise
};

// Throws ValueError for other dtypes than float32, bfloat16 and float16.
Number number_of(at::ScalarType dtype);

// A segment with groups over tokens that a crop left unfilled comes as several, as kernels know
// only a first and a last group that are not full. The pointers hold as long as the tensors in
// `segments`, which must have been put_together(). Throws ValueError for a dtype.
Launches launches_of(const std::vector<detail::SegmentSides>& segments);

}  // namespace kvcache::kernels::cuda
