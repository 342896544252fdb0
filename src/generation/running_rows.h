// The rows of a batch that still run. Those that have ended are no longer fed to the model; their
// part of the cache is set aside and comes back at the end, so that the cache holds every row as
// if it had run alone: its text but its last token, the shorter ones behind padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/cache/cache.h"
#include "kvcache/generation/token_rows.h"
#include "kvcache/models/language_model.h"

namespace kvcache::detail {

// Columns [first, first + count) of a text, as they are fed.
ForwardInput columns_of(const TokenRows& text, std::int64_t first, std::int64_t count);

// These rows of an encoder's input.
EncoderInput rows_of(const EncoderInput& encoder, const std::vector<std::int64_t>& rows);

// A cache of some rows of a batch, and which of them these are, in its order.
struct CachePart {
  std::unique_ptr<Cache> cache;
  std::vector<std::int64_t> rows;
};

// All rows go to `cache`, which holds none, in their order. Where memory lacks for it the cache
// holds no tokens.
void put_together(const std::vector<CachePart>& parts, Cache& cache);

class RunningRows {
 public:
  // `cache`: what the rows are fed to, null for none; `pads_do_harm`: to layers of the model, which
  // have windows or states. Keeps a reference.
  RunningRows(Cache* cache, std::int64_t rows, bool pads_do_harm)
      : cache_(cache), rows_(rows), pads_do_harm_(pads_do_harm) {}
  RunningRows(const RunningRows&) = delete;
  RunningRows& operator=(const RunningRows&) = delete;

  // What is left to put together is; where memory lacks for it, the cache holds no tokens.
  ~RunningRows();

  // Every row is `each` neighbouring ones from now on. Before any has ended.
  void repeat(std::int64_t each) { rows_ *= each; }

  // The cache of the rows that are fed.
  Cache* cache() const { return moved_ ? moved_.get() : cache_; }

  // Rows that have not ended.
  std::int64_t running() const {
    return some_ended_ ? static_cast<std::int64_t>(running_.size()) : rows_;
  }

  // Lets rows go for which bool [rows] is false, before the last token of a text of `length` tokens
  // is fed. Rows in buffers of a fixed size, or over a prefix that is held once, stay where pads do
  // no harm, and get padding. What it throws has lost nothing.
  void keep(const at::Tensor& running, std::int64_t length);

  // Columns [first, first + count) of a text, int64 [rows, length], as they are fed.
  ForwardInput fed(const TokenRows& text, std::int64_t first, std::int64_t count) const;

  // Of as many indices as there are rows, each of a row that is fed where its own is: those of the
  // rows that are fed, counted among these.
  at::Tensor fed(const at::Tensor& indices) const;

  // The encoder's rows for the rows that are fed.
  std::optional<EncoderInput> fed(const std::optional<EncoderInput>& encoder) const;

  // Scores [fed rows, ...] as scores [rows, ...], zeros where a row has ended; and the latter.
  at::Tensor spread(const at::Tensor& scores) const;
  at::Tensor without_ended(const at::Tensor& scores) const;

  // All rows go back to the cache, in their order. Where memory lacks for it the cache holds no
  // tokens.
  void put_together();

  // Instead of put_together(): the caches of all rows, those that have not ended first. None where
  // no row has left; the rows are then where they were.
  std::vector<CachePart> take_parts();

 private:
  void let_go(const std::vector<std::int64_t>& ended, const std::vector<std::int64_t>& running);
  void move_padding();
  std::vector<std::int64_t> places(const std::vector<std::int64_t>& rows) const;

  Cache* cache_;
  std::int64_t rows_;
  bool pads_do_harm_;

  bool some_ended_ = false;
  std::vector<std::int64_t> running_;  // once some have ended
  std::vector<std::int64_t> ends_;     // by row: column of the text from which on it is not fed
  bool masked_ = false;                // rows that have ended stay and get padding

  // Where they leave:
  std::unique_ptr<Cache> moved_;  // the running rows; null: none have left, or there is no cache
  std::vector<CachePart> ended_;
};

}  // namespace kvcache::detail
