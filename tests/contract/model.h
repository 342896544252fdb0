// What a cache should hold, as simply as it can be said: each row's tokens as a list, each layer's
// window as a number.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "kvcache/core/view.h"
#include "tests/contract/kinds.h"

namespace kvcache::testing {

struct Token {
  std::int64_t content = 0;             // keys and values follow from it
  std::optional<std::int64_t> id = {};  // absent: fed without ids
  bool real = true;                     // false: padding
  // Put before shorter rows that were joined: its keys, values and inputs of convolutions are
  // zeros, and recurrences never took it in.
  bool blank = false;
};

using TokenRows = std::vector<std::vector<Token>>;  // all rows are equally long

// `added` behind `rows`, which may be none.
TokenRows joined(TokenRows rows, const TokenRows& added);

struct Random {
  explicit Random(std::uint64_t seed) : engine(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }

  std::mt19937_64 engine;
};

// Keys [rows, heads, tokens, 3] and values [rows, heads, tokens, 2] of columns `range` in a layer.
// Integers below 256, which bfloat16 holds exactly; they differ by layer, head and element. Zeros
// where a token is blank.
KeyValue states_of(const TokenRows& rows, Range range, std::int64_t layer, const Setting& setting);

inline constexpr std::int64_t kKeyDim = 3;
inline constexpr std::int64_t kValueDim = 2;

// Whether layers of this spec keep keys and values of their own.
bool has_keys(const LayerSpec& spec);

// One of a layer's states: convolution `index` has 3 + index taps.
struct StateIndex {
  std::int64_t layer;
  std::int64_t index;

  std::int64_t taps() const { return 3 + index; }
};

// Inputs of a convolution [rows, kChannels, tokens] at columns `range`; zeros before the first.
at::Tensor conv_inputs_of(const TokenRows& rows, Range range, StateIndex state,
                          const Setting& setting);

// States of a recurrence after the first t tokens for every t in `ends`, float32 [ends, rows,
// kStateSize]. Each depends on all tokens before.
at::Tensor recurrent_states_of(const TokenRows& rows, Range ends, StateIndex state,
                               const Setting& setting);

inline constexpr std::int64_t kChannels = 2;
inline constexpr std::int64_t kStateSize = 3;

// The encoder's side of a pair of caches: a row for each of the encoder's; none: nothing is held.
struct EncoderModel {
  std::int64_t tokens() const { return rows.empty() ? 0 : std::int64_t(rows[0].size()); }
  std::int64_t batch() const { return std::int64_t(rows.size()); }
  bool held() const { return !rows.empty(); }
  bool ids_known() const;

  // Whether `input`, for `batch` rows of the decoder, is known to be what is held.
  bool holds(const TokenRows& input, std::int64_t batch) const;

  // Which rows there are when the decoder's `batch` rows become rows `indices` of them: no more
  // than neighbours need.
  std::vector<std::int64_t> chosen(const std::vector<std::int64_t>& indices,
                                   std::int64_t batch) const;

  TokenRows rows;
};

class CacheModel {
 public:
  explicit CacheModel(const Setting& setting);

  std::int64_t seen() const { return rows.empty() ? 0 : std::int64_t(rows[0].size()); }
  std::int64_t batch() const { return std::int64_t(rows.size()); }
  std::int64_t layers() const { return std::int64_t(layers_.size()); }

  Visible visible(std::int64_t layer, std::int64_t tokens) const;
  std::int64_t columns(std::int64_t layer, std::int64_t tokens) const;  // padding included
  std::int64_t first_held(std::int64_t layer) const { return layers_[std::size_t(layer)].first; }
  bool can_crop(std::int64_t tokens) const;

  // Tokens that it has room for in all; absent: it grows. Whether so many more find room.
  std::optional<std::int64_t> capacity() const;
  bool fits(std::int64_t tokens) const { return seen() + tokens <= capacity().value_or(INT64_MAX); }
  bool is_bounded(std::int64_t layer) const { return layers_[std::size_t(layer)].bound() > 0; }
  bool can_record() const;

  const LayerSpec& spec(std::int64_t layer) const { return layers_[std::size_t(layer)].spec; }
  bool has_keys(std::int64_t layer) const { return testing::has_keys(spec(layer)); }
  bool all_have_keys_alone() const;  // so that update() can feed them
  // The layer whose keys a layer reads, often itself; whether another one reads its.
  std::int64_t source(std::int64_t layer) const { return spec(layer).donor.value_or(layer); }
  bool is_donor(std::int64_t layer) const;
  std::int64_t convolutions(std::int64_t layer) const;
  std::int64_t recurrences(std::int64_t layer) const;
  std::int64_t wanted_states(std::int64_t layer, std::int64_t tokens) const;
  std::int64_t recorded_states(std::int64_t layer) const {
    return layers_[std::size_t(layer)].recorded;
  }

  // `new_stamps`: of each row; none: they stay.
  void append(const TokenRows& added, const std::vector<std::int64_t>& new_stamps = {});
  void crop(std::int64_t tokens);
  void record(std::optional<std::int64_t> max_tokens = {});
  void reset();
  void select(const std::vector<std::int64_t>& indices);
  void expand(std::int64_t rows);
  // Those of `part` rows each, the last of what is left.
  std::vector<CacheModel> split(std::int64_t part) const;
  // Becomes the rows of `parts` of it, which may have been cropped since.
  void join(const std::vector<CacheModel>& parts);
  void join_encoders(const std::vector<CacheModel>& parts);

  // Tokens that a layer holds once for all rows.
  std::int64_t shared_tokens(std::int64_t layer) const {
    const bool fixed = layers_[std::size_t(layer)].fixed.has_value();
    return fixed ? 0 : std::max<std::int64_t>(shared_end_ - first_held(layer), 0);
  }

  bool ids_known() const;
  std::int64_t real_tokens(std::int64_t row) const;

  TokenRows rows;                    // none: nothing seen since construction or reset
  std::vector<std::int64_t> stamps;  // of each row
  EncoderModel encoder;

 private:
  bool shows_room_;  // layers of a fixed size: columns that are not filled, too
  struct LayerModel {
    LayerSpec spec;
    std::optional<StaticLayerOptions> fixed;
    std::int64_t record = 0;         // tokens that can be taken back beyond the window
    std::int64_t first = 0;          // oldest position held
    std::int64_t record_states = 0;  // tokens whose states may be kept beside the last one's
    std::int64_t recorded = 0;       // those that are

    std::int64_t window() const;  // 0: none, also where no token can leave it
    std::int64_t bound() const;   // tokens it holds in all; 0: any number passes through it
  };

  static std::int64_t first_needed(const LayerModel& layer, std::int64_t seen);

  std::vector<LayerModel> layers_;
  std::int64_t shared_end_ = 0;  // where growing layers hold one row for all
};

}  // namespace kvcache::testing
