// The rows of text that generate() writes, growing at the end without copying what is there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kvcache/generation/token_rows.h"

namespace kvcache::detail {

class TextBuffer {
 public:
  // Starts with a copy of `start`.
  explicit TextBuffer(const TokenRows& start);

  // The text so far: views, valid until the next append.
  TokenRows text() const;
  std::int64_t length() const { return length_; }

  // Lets the last columns go: as if they had not been appended.
  void shorten(std::int64_t length) { length_ = length; }

  // Row i becomes old row rows[i], int64 [n] on the text's device. Views of before keep their text.
  void select(const at::Tensor& rows);

  // One token for each row, int64 [rows]. `real`, bool [rows]: false for padding; absent: all real.
  void append(const at::Tensor& tokens, const std::optional<at::Tensor>& real);

 private:
  void reserve(std::int64_t columns);

  at::Tensor ids_;                   // int64 [rows, capacity]
  std::optional<at::Tensor> valid_;  // bool [rows, capacity]; absent: no padding so far
  std::int64_t length_ = 0;
};

}  // namespace kvcache::detail
