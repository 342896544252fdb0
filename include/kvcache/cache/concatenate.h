// Joins the rows of caches of different lengths: shorter ones move to the right, behind padding.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/layer_state.h"
#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/history.h"

namespace kvcache::detail {

// One cache's part of a joined layer.
struct CacheRows {
  LayerState state;
  std::int64_t batch;  // rows
  std::int64_t seen;   // tokens of each
};

// The rows of caches one by one: of row i, the rows[i]th of all rows counted through. Views.
inline std::vector<CacheRows> chosen_rows(const std::vector<CacheRows>& caches,
                                          const std::vector<std::int64_t>& rows) {
  std::vector<CacheRows> chosen;
  for (std::int64_t row : rows) {
    auto cache = caches.begin();
    for (; row >= cache->batch; ++cache) row -= cache->batch;
    CacheRows one{.state = cache->state, .batch = 1, .seen = cache->seen};
    for (auto& [name, tensor] : one.state.tensors) {
      if (tensor.content.defined() && tensor.batch_dim) {
        tensor.content = tensor.content.narrow(*tensor.batch_dim, row, 1);
      }
    }
    chosen.push_back(std::move(one));
  }
  return chosen;
}

inline std::int64_t longest(const std::vector<CacheRows>& caches) {
  std::int64_t seen = 0;
  for (const CacheRows& cache : caches) seen = std::max(seen, cache.seen);
  return seen;
}

// First column, of `seen` ones, from which on every row's tokens are held. A row that has lost none
// is held from its padding on.
inline std::int64_t joined_first(const std::vector<CacheRows>& caches, std::int64_t seen) {
  std::int64_t first = 0;
  for (const CacheRows& cache : caches) {
    const std::int64_t own = cache.state.counts.at("held_first");
    if (own > 0) first = std::max(first, own + seen - cache.seen);
  }
  return first;
}

// Refuses tensors that do not have the first one's shape apart from rows and tokens. Throws
// ValueError.
inline void check_joins(const std::string& name, const StateTensor& first,
                        const StateTensor& other) {
  const at::Tensor &a = first.content, &b = other.content;
  check_value(a.defined() == b.defined() && first.batch_dim == other.batch_dim, "one cache holds ",
              name, ", another none");
  if (!a.defined()) return;
  check_value(a.scalar_type() == b.scalar_type() && a.device() == b.device(), name, " are ",
              dtype_name(a), " on ", a.device(), " in one cache and ", dtype_name(b), " on ",
              b.device(), " in another");
  std::vector<std::int64_t> shape = b.sizes().vec();
  for (const auto& dim : {first.batch_dim, first.token_dim}) {
    if (dim && a.dim() == b.dim()) shape[static_cast<std::size_t>(*dim)] = a.size(*dim);
  }
  check_value(a.sizes() == shape, name, " are ", a.sizes(), " in one cache and ", b.sizes(),
              " in another; only rows and tokens may differ");
}

// Keys or values of columns `columns`, which end where every cache's tokens end: zeros where a row
// holds padding.
inline at::Tensor join_tokens(const std::vector<CacheRows>& caches, const std::string& name,
                              Range columns) {
  std::vector<at::Tensor> rows;
  for (const CacheRows& cache : caches) {
    const StateTensor& tensor = cache.state.tensors.at(name);
    const std::int64_t dim = tensor.token_dim.value();
    const std::int64_t tokens = std::min(tensor.content.size(dim), columns.length());
    const std::int64_t skipped = tensor.content.size(dim) - tokens;
    std::vector<std::int64_t> padding = tensor.content.sizes().vec();
    padding[static_cast<std::size_t>(dim)] = columns.length() - tokens;
    rows.push_back(at::cat(
        {at::zeros(padding, tensor.content.options()), tensor.content.narrow(dim, skipped, tokens)},
        dim));
  }
  return at::cat(rows, caches[0].state.tensors.at(name).batch_dim.value());
}

inline at::Tensor join_states(const std::vector<CacheRows>& caches, const std::string& name) {
  const StateTensor& first = caches[0].state.tensors.at(name);
  if (!first.batch_dim) return first.content;
  std::vector<at::Tensor> rows;
  rows.reserve(caches.size());
  for (const CacheRows& cache : caches) {
    rows.push_back(cache.state.tensors.at(name).content);
    const auto dim = first.token_dim;
    check_value(!dim || rows.front().size(*dim) == rows.back().size(*dim), "there are ", name,
                " of ", rows.front().size(dim.value_or(0)), " tokens in one cache and of ",
                rows.back().size(dim.value_or(0)),
                " in another of the same length; quantized caches are joined if they were cropped "
                "alike");
  }
  return at::cat(rows, *first.batch_dim);
}

inline void join_counts(const std::vector<CacheRows>& caches, LayerState& result) {
  const std::int64_t seen = longest(caches);
  for (auto& [name, value] : result.counts) {
    if (name == "seen" || name == "held_end") {
      value = seen;
    } else if (name == "held_first") {
      value = joined_first(caches, seen);
    } else {
      for (const CacheRows& cache : caches) {
        const std::int64_t other = cache.state.counts.at(name);
        check_value(
            other == value, "the caches differ in '", name, "': ", value, " and ", other,
            "; give them the same settings, crop them alike, and crop(0) what they recorded");
      }
    }
  }
}

// Throws ValueError for states that cannot be those of one layer.
inline LayerState join_rows(const std::vector<CacheRows>& caches) {
  const CacheRows& first = caches[0];
  LayerState result = first.state;
  for (const CacheRows& cache : caches) {
    const auto names = [](const auto& a, const auto& b) { return a.first == b.first; };
    check_value(std::equal(first.state.tensors.begin(), first.state.tensors.end(),
                           cache.state.tensors.begin(), cache.state.tensors.end(), names) &&
                    std::equal(first.state.counts.begin(), first.state.counts.end(),
                               cache.state.counts.begin(), cache.state.counts.end(), names),
                "the caches hold different kinds of state");
    for (const auto& [name, tensor] : first.state.tensors) {
      check_joins(name, tensor, cache.state.tensors.at(name));
    }
  }
  join_counts(caches, result);
  for (auto& [name, tensor] : result.tensors) {
    if (!tensor.content.defined()) continue;
    tensor.content =
        tensor.role == Role::attention
            ? join_tokens(caches, name, {result.counts.at("held_first"), longest(caches)})
            : join_states(caches, name);
  }
  return result;
}

// Refuses to join caches of different lengths where tokens of `stack`, one of them, are packed:
// shorter ones would have to move within groups of several. Throws ValueError.
inline void check_can_move(LayerStack& stack, const std::vector<History>& histories) {
  class FindPacked final : public Visitor {
   public:
    void tensor(const TensorInfo& info, at::Tensor& tensor) override {
      found = found || (tensor.defined() && is_of_some_tokens(info.role) && info.live.length() > 0);
    }
    void count(std::string_view, std::int64_t&) override {}

    bool found = false;
  };
  const auto [shortest, longest] =
      std::minmax_element(histories.begin(), histories.end(),
                          [](const auto& a, const auto& b) { return a.seen() < b.seen(); });
  if (shortest == histories.end() || shortest->seen() == longest->seen()) return;
  FindPacked packed;
  visit_all(stack, packed);
  check_value(!packed.found, "caches of ", shortest->seen(), " and ", longest->seen(),
              " tokens cannot be joined once tokens are quantized; join caches of one length, or "
              "before they exceed residual_length");
}

inline History join_histories(const std::vector<History>& histories) {
  std::int64_t seen = 0;
  bool known = true;
  for (const History& history : histories) {
    seen = std::max(seen, history.seen());
    known = known && history.known();
  }
  std::vector<at::Tensor> ids, valid, stamps;
  for (const History& history : histories) {
    const History::Content content = history.content();
    const std::vector<std::int64_t> padding{history.batch(), seen - history.seen()};
    ids.push_back(at::cat({at::zeros(padding, at::kLong), content.ids}, 1));
    valid.push_back(at::cat({at::zeros(padding, at::kBool), content.valid}, 1));
    stamps.push_back(content.stamps);
  }
  return History({.ids = at::cat(ids, 0),
                  .valid = at::cat(valid, 0),
                  .stamps = at::cat(stamps, 0),
                  .known = known ? seen : 0});
}

}  // namespace kvcache::detail
