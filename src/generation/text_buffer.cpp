#include "generation/text_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>

namespace kvcache::detail {
namespace {

at::Tensor widened(const at::Tensor& columns, std::int64_t length, std::int64_t capacity) {
  at::Tensor wide = at::empty({columns.size(0), capacity}, columns.options());
  wide.narrow(1, 0, length).copy_(columns.narrow(1, 0, length));
  return wide;
}

constexpr std::int64_t kFirstRoom = 64;

}  // namespace

TextBuffer::TextBuffer(const TokenRows& start) : length_(start.length()) {
  ids_ = widened(start.ids, length_, length_ + kFirstRoom);
  if (start.valid) valid_ = widened(*start.valid, length_, ids_.size(1));
}

TokenRows TextBuffer::text() const {
  TokenRows rows{ids_.narrow(1, 0, length_)};
  if (valid_) rows.valid = valid_->narrow(1, 0, length_);
  return rows;
}

void TextBuffer::select(const at::Tensor& rows) {
  ids_ = ids_.index_select(0, rows);
  if (valid_) valid_ = valid_->index_select(0, rows);
}

void TextBuffer::append(const at::Tensor& tokens, const std::optional<at::Tensor>& real) {
  reserve(length_ + 1);
  ids_.select(1, length_).copy_(tokens);
  if (real && !valid_) valid_ = at::ones_like(ids_, at::kBool);
  if (valid_ && real) valid_->select(1, length_).copy_(*real);
  if (valid_ && !real) valid_->select(1, length_).fill_(true);
  ++length_;
}

void TextBuffer::reserve(std::int64_t columns) {
  if (columns <= ids_.size(1)) return;
  const std::int64_t capacity = std::max(columns, 2 * ids_.size(1));
  ids_ = widened(ids_, length_, capacity);
  if (valid_) valid_ = widened(*valid_, length_, capacity);
}

}  // namespace kvcache::detail
