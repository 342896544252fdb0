// The tokens that a cache has seen: ids and which of them are real, row by row. From it come
// positions under padding and the question how much of a cache fits a text. Beside them each row
// has a stamp: what a model's keys depend on other than its tokens.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"

namespace kvcache {

class History {
 public:
  // All that a history knows, in tensors on the CPU: to be saved, or joined with others.
  struct Content {
    at::Tensor ids;          // int64 [batch, seen], contiguous; any number where not known
    at::Tensor valid;        // bool [batch, seen], contiguous: false where a row holds padding
    at::Tensor stamps;       // int64 [batch], contiguous
    std::int64_t known = 0;  // leading tokens whose ids are known
  };

  History() = default;

  // Requires tensors as Content says, and known <= seen.
  explicit History(const Content& content)
      : rows_(index(content.ids.size(0))), seen_(content.ids.size(1)), known_(content.known) {
    const auto* ids = content.ids.const_data_ptr<std::int64_t>();
    const bool* valid = content.valid.const_data_ptr<bool>();
    const auto* stamp = content.stamps.const_data_ptr<std::int64_t>();
    for (Row& row : rows_) {
      row.ids.assign(ids, ids + seen_);
      row.valid.assign(valid, valid + seen_);
      row.count();
      row.stamp = *stamp++;
      ids += seen_;
      valid += seen_;
    }
  }

  Content content() const {
    at::Tensor stamps = at::empty({batch()}, at::kLong);
    std::transform(rows_.begin(), rows_.end(), stamps.data_ptr<std::int64_t>(),
                   [](const Row& row) { return row.stamp; });
    return {
        .ids = to_tensor<std::int64_t>(at::kLong, [](const Row& row) { return row.ids.data(); }),
        .valid = valid(),
        .stamps = stamps,
        .known = known_};
  }

  // Tokens seen, real ones and padding.
  std::int64_t seen() const noexcept { return seen_; }
  std::int64_t batch() const noexcept { return static_cast<std::int64_t>(rows_.size()); }

  // False once tokens came in without ids: `update()` outside a model, or embeddings.
  bool known() const noexcept { return known_ == seen_; }

  // Whether no row holds padding.
  bool all_valid() const noexcept {
    return std::all_of(rows_.begin(), rows_.end(),
                       [&](const Row& row) { return row.valid_count == seen_; });
  }

  // int64 [batch, seen] on the CPU. Throws RuntimeError if the ids are not known.
  at::Tensor ids() const {
    check_known("its token ids");
    return to_tensor<std::int64_t>(at::kLong, [](const Row& row) { return row.ids.data(); });
  }

  // bool [batch, seen] on the CPU: false where a row holds padding.
  at::Tensor valid() const {
    return to_tensor<bool>(at::kBool, [](const Row& row) { return row.valid.data(); });
  }

  // The longest prefix, in columns, in which every row of `ids` (int64 [batch, n], CPU, contiguous)
  // with padding `valid` (bool [batch, n]; absent: all real) equals what was seen. Ids under
  // padding do not matter. 0 if batches differ. Throws RuntimeError if the history is not known.
  std::int64_t common_prefix(const at::Tensor& ids, const std::optional<at::Tensor>& valid) const {
    check_known("the common prefix with a text");
    if (ids.size(0) != batch()) return 0;
    const std::int64_t columns = ids.size(1);
    const auto* new_ids = ids.const_data_ptr<std::int64_t>();
    const bool* new_valid = valid ? valid->const_data_ptr<bool>() : nullptr;
    std::int64_t common = std::min(columns, seen_);
    for (std::int64_t r = 0; r < batch(); ++r) {
      const Row& row = rows_[index(r)];
      const auto same = [&](std::int64_t i) {
        const bool real = new_valid == nullptr || new_valid[r * columns + i];
        return row.valid[index(i)] == real &&
               (!real || row.ids[index(i)] == new_ids[r * columns + i]);
      };
      std::int64_t i = 0;
      while (i < common && same(i)) ++i;
      common = i;
    }
    return common;
  }

  // A step's tokens, kept apart until publish. `ids` int64 and `valid` bool, [batch, tokens], CPU,
  // contiguous; ids absent: unknown tokens, valid absent: all real. `past_valid`, bool [batch,
  // seen], replaces what was known of the past's padding. Allocates; publish does not.
  struct Staged {
    std::int64_t batch;
    std::int64_t tokens;
    std::optional<at::Tensor> ids = {};
    std::optional<at::Tensor> valid = {};
    std::optional<at::Tensor> past_valid = {};
    std::vector<std::int64_t> stamps = {};  // one a row; empty: as they were
  };

  // Real tokens of each row, those of the step included.
  std::vector<std::int64_t> lengths(const Staged& step) const {
    std::vector<std::int64_t> result;
    const bool* valid = step.valid ? step.valid->const_data_ptr<bool>() : nullptr;
    for (std::int64_t row = 0; row < step.batch; ++row) {
      const bool* own = valid == nullptr ? nullptr : valid + row * step.tokens;
      const std::int64_t added =
          own == nullptr ? step.tokens : std::count(own, own + step.tokens, true);
      result.push_back(real_tokens(row, step.past_valid) + added);
    }
    return result;
  }

  // The first row that holds real tokens under another stamp than `stamps`, one a row, says.
  std::optional<std::int64_t> first_row_unlike(
      const std::vector<std::int64_t>& stamps,
      const std::optional<at::Tensor>& past_valid = {}) const {
    for (std::int64_t row = 0; row < batch(); ++row) {
      if (rows_[index(row)].stamp != stamps[index(row)] && real_tokens(row, past_valid) > 0) {
        return row;
      }
    }
    return std::nullopt;
  }

  // Stamps the rows, one number each, once the staged step is published.
  void stamp(std::vector<std::int64_t> stamps) { staged_->stamps = std::move(stamps); }

  // int64 [batch, tokens] on the CPU: the position of each of the step's tokens is the number of
  // real tokens before it in its row; padding gets 0.
  at::Tensor positions(const Staged& step) const {
    at::Tensor result = at::empty({step.batch, step.tokens}, at::kLong);
    auto* out = result.data_ptr<std::int64_t>();
    const bool* valid = step.valid ? step.valid->const_data_ptr<bool>() : nullptr;
    for (std::int64_t row = 0; row < step.batch; ++row) {
      std::int64_t next = real_tokens(row, step.past_valid);
      for (std::int64_t i = row * step.tokens; i < (row + 1) * step.tokens; ++i) {
        const bool real = valid == nullptr || valid[i];
        out[i] = real ? next : 0;
        next += real ? 1 : 0;
      }
    }
    return result;
  }

  void stage(Staged staged) {
    if (rows_.empty()) fresh_rows_.resize(index(staged.batch));
    for (Row& row : rows_.empty() ? fresh_rows_ : rows_) {
      reserve_amortized(row.ids, staged.tokens);
      reserve_amortized(row.valid, staged.tokens);
    }
    staged_ = std::move(staged);
  }

  void publish() noexcept {
    if (!staged_) return;
    if (rows_.empty()) rows_ = std::move(fresh_rows_);
    for (std::int64_t r = 0; r < batch(); ++r) append_row(r);
    if (staged_->ids && known()) known_ += staged_->tokens;
    seen_ += staged_->tokens;
    discard();
  }

  void discard() noexcept {
    fresh_rows_.clear();
    staged_.reset();
  }

  // Takes the last `tokens` tokens back.
  void crop(std::int64_t tokens) {
    seen_ -= tokens;
    known_ = std::min(known_, seen_);
    for (Row& row : rows_) {
      row.ids.resize(index(seen_));
      row.valid.resize(index(seen_));
      row.count();
    }
  }

  void reset() noexcept {
    rows_.clear();
    seen_ = known_ = 0;
    discard();
  }

  // New row i is old row rows[i]; indices must be in range.
  void select(const std::vector<std::int64_t>& rows) {
    std::vector<Row> chosen;
    chosen.reserve(rows.size());
    for (const std::int64_t row : rows) chosen.push_back(rows_[index(row)]);
    rows_ = std::move(chosen);
  }

 private:
  struct Row {
    std::vector<std::int64_t> ids;
    std::vector<char> valid;
    std::int64_t valid_count = 0;
    std::int64_t stamp = 0;

    void count() { valid_count = std::accumulate(valid.begin(), valid.end(), std::int64_t{0}); }
  };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  template <typename T>
  static void reserve_amortized(std::vector<T>& values, std::int64_t more) {
    const std::size_t needed = values.size() + index(more);
    if (needed > values.capacity()) values.reserve(std::max(needed, 2 * values.capacity()));
  }

  void check_known(const char* what) const {
    check_state(known(), "the cache does not know ", what, ": ", seen_ - known_, " of its ", seen_,
                " tokens came in without ids (update() outside a model, or embeddings); declare a "
                "continuation, or reset the cache");
  }

  template <typename T, typename Source>
  at::Tensor to_tensor(at::ScalarType dtype, const Source& source) const {
    at::Tensor result = at::empty({batch(), seen_}, dtype);
    for (std::int64_t r = 0; r < batch(); ++r) {
      std::copy_n(source(rows_[index(r)]), seen_, result.data_ptr<T>() + r * seen_);
    }
    return result;
  }

  // Real tokens seen in a row, where `past_valid` replaces what was known of its padding.
  std::int64_t real_tokens(std::int64_t row, const std::optional<at::Tensor>& past_valid) const {
    if (past_valid) {
      const bool* past = past_valid->const_data_ptr<bool>() + row * seen_;
      return std::count(past, past + seen_, true);
    }
    return rows_.empty() ? 0 : rows_[index(row)].valid_count;
  }

  void append_row(std::int64_t r) noexcept {
    Row& row = rows_[index(r)];
    const std::int64_t tokens = staged_->tokens;
    if (!staged_->stamps.empty()) row.stamp = staged_->stamps[index(r)];
    if (staged_->past_valid) {
      const bool* past = staged_->past_valid->const_data_ptr<bool>() + r * seen_;
      std::copy_n(past, seen_, row.valid.begin());
      row.count();
    }
    const auto* ids = staged_->ids ? staged_->ids->const_data_ptr<std::int64_t>() : nullptr;
    const auto* valid = staged_->valid ? staged_->valid->const_data_ptr<bool>() : nullptr;
    for (std::int64_t i = r * tokens; i < (r + 1) * tokens; ++i) {
      const bool real = valid == nullptr || valid[i];
      row.ids.push_back(ids == nullptr ? kUnknownId : ids[i]);
      row.valid.push_back(real ? 1 : 0);
      row.valid_count += real ? 1 : 0;
    }
  }

  static constexpr std::int64_t kUnknownId = -1;

  std::vector<Row> rows_;
  std::int64_t seen_ = 0;
  std::int64_t known_ = 0;  // leading tokens whose ids are known
  std::vector<Row> fresh_rows_;
  std::optional<Staged> staged_;
};

}  // namespace kvcache
