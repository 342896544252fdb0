// The names of dtypes in messages: those of PyTorch, as users write them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <ostream>

namespace kvcache::detail {

// Prints as "float32", "bfloat16", "int64", ...: made for every check, spelled by those that fail.
struct DtypeName {
  at::ScalarType dtype;

  friend std::ostream& operator<<(std::ostream& out, const DtypeName& name) {
    if (name.dtype == at::ScalarType::Undefined) return out << "undefined";
    return out << c10::getDtypeNames(name.dtype).first;
  }
};

inline DtypeName dtype_name(at::ScalarType dtype) { return {dtype}; }
inline DtypeName dtype_name(const at::Tensor& tensor) { return {tensor.scalar_type()}; }

}  // namespace kvcache::detail
