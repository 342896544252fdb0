// The rows of text that processors and stopping criteria look at, with their padding told apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <cstdint>
#include <optional>

namespace kvcache {

// The texts so far, prompt and new tokens.
struct TokenRows {
  at::Tensor ids;                        // int64 [rows, length]
  std::optional<at::Tensor> valid = {};  // bool [rows, length], false: padding; absent: none

  // Columns, padding included.
  std::int64_t length() const { return ids.size(1); }

  // The tokens of each row without its padding, int64 [rows].
  at::Tensor lengths() const {
    return valid ? valid->sum(1) : at::full({ids.size(0)}, length(), ids.options());
  }

  // One row without its padding, int64 [tokens]. On an accelerator it waits for the device.
  at::Tensor row(std::int64_t index) const {
    const at::Tensor all = ids.select(0, index);
    return valid ? all.masked_select(valid->select(0, index)) : all;
  }

  // Every row's tokens at its end, -1 before them, int64 [rows, length]: so that the last tokens of
  // all rows, without padding, are the last columns. Never waits for the device.
  at::Tensor right_aligned() const {
    if (!valid) return ids;
    // A token moves right by the padding that comes after it; padding goes to one more column.
    const at::Tensor before = valid->cumsum(1);
    const at::Tensor behind = before.narrow(1, length() - 1, 1).sub(before);
    const at::Tensor target = at::where(*valid, behind.neg().add(length() - 1), length());
    at::Tensor aligned = at::full({ids.size(0), length() + 1}, -1, ids.options());
    return aligned.scatter_(1, target, ids).narrow(1, 0, length());
  }
};

}  // namespace kvcache
