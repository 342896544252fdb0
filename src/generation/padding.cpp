#include "generation/padding.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

// Index of the first row of bool [rows, columns] with a false after a true; the number of rows if
// there is none.
std::int64_t first_row_with_holes(const at::Tensor& valid) {
  const at::Tensor holes = valid.cumsum(1).gt(0).logical_and(valid.logical_not());
  return first_false(holes.any(1).logical_not());
}

void check_held_padding(const Prompt& prompt, const Cache& cache) {
  const bool own_past = prompt.valid && prompt.valid->size(1) > prompt.tokens();
  if (!prompt.continuation || own_past || cache.history().all_valid()) return;
  const at::Tensor valid = cache.history().valid();
  const std::int64_t row = first_row_with_holes(valid);
  check_state(row == valid.size(0), "row ", row,
              " of the cache holds padding between its tokens (it had ended before others), which "
              "layers with a window or a state cannot go on from; pass the whole text instead, "
              "padded on the "
              "left");
}

// A cache of one row goes on with several rows: the same is asked of the padding of each.
void check_new_padding(const Prompt& prompt, const Cache& cache) {
  const auto valid = prompt.valid ? prompt.last_valid(prompt.tokens()) : std::nullopt;
  if (!prompt.continuation || !valid || cache.batch_size() == prompt.rows()) return;
  const std::int64_t row = first_false(valid->select(1, 0));
  check_value(row == prompt.rows(), "row ", row,
              " has padding behind what the cache holds, which layers with a window or a state "
              "cannot leave out; pass whole texts instead, padded on the left");
}

// Leading tokens that all rows, padding aside, have in common with the one row of a cache, at most
// all but the last one of each row.
std::int64_t common_tokens(const TokenRows& rows, const at::Tensor& held) {
  std::int64_t common = held.size(0);
  for (std::int64_t i = 0; i < rows.ids.size(0); ++i) {
    const at::Tensor row = rows.row(i);
    common = std::min(common, row.size(0) - 1);
    common = first_false(row.narrow(0, 0, common).eq(held.narrow(0, 0, common)));
  }
  return common;
}

}  // namespace

std::int64_t first_false(const at::Tensor& flags) {
  const at::Tensor where = flags.logical_not().nonzero();
  return where.numel() > 0 ? where[0].item<std::int64_t>() : flags.numel();
}

void check_padding(const Prompt& prompt, const LanguageModel& model, const Cache& cache) {
  if (!prompt.continuation || !any_forgets(model.config().layer_specs())) return;
  check_held_padding(prompt, cache);
  check_new_padding(prompt, cache);
}

void move_padding_before(Prompt& prompt) {
  if (!prompt.valid || first_row_with_holes(*prompt.valid) == prompt.rows()) return;
  const at::Tensor aligned = TokenRows{prompt.ids, prompt.valid}.right_aligned();
  prompt.valid = aligned.ge(0);
  prompt.ids = aligned.clamp_min(0);
}

void go_on_from_rows(Prompt& prompt, const LanguageModel& model, const Cache& cache) {
  const History& history = cache.history();
  if (prompt.continuation || history.batch() != prompt.rows() || !history.known()) return;
  if (!prompt.valid && history.all_valid()) return;
  const TokenRows rows{prompt.ids, prompt.valid},
      held{history.ids().to(prompt.ids.device()), history.valid().to(prompt.ids.device())};
  std::vector<at::Tensor> rest;  // of each row, behind what the cache holds of it
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < prompt.rows(); ++i) {
    const at::Tensor row = rows.row(i), own = held.row(i);
    const std::int64_t more = row.size(0) - own.size(0);
    if (more <= 0 || !row.narrow(0, 0, own.size(0)).equal(own)) return;
    rest.push_back(row.narrow(0, own.size(0), more));
    longest = std::max(longest, more);
  }
  const bool even = std::all_of(rest.begin(), rest.end(),
                                [&](const at::Tensor& row) { return row.size(0) == longest; });
  if (!even && any_forgets(model.config().layer_specs())) return;
  const std::int64_t columns = held.length() + longest, added = columns - prompt.tokens();
  if (added > prompt.tokens() || prompt.longest + added - 1 > cache.capacity().value_or(kNoBound)) {
    return;
  }
  at::Tensor ids = at::zeros({prompt.rows(), longest}, rows.ids.options());
  at::Tensor valid = at::zeros({prompt.rows(), longest}, held.valid->options());
  for (std::int64_t i = 0; i < prompt.rows(); ++i) {
    const at::Tensor& row = rest[static_cast<std::size_t>(i)];
    ids[i].narrow(0, longest - row.size(0), row.size(0)).copy_(row);
    valid[i].narrow(0, longest - row.size(0), row.size(0)).fill_(true);
  }
  prompt.ids = at::cat({held.ids, ids}, 1);
  prompt.valid = at::cat({*held.valid, valid}, 1);
}

void move_padding_behind_prefix(Prompt& prompt, const LanguageModel& model, const Cache& cache) {
  if (prompt.continuation || !prompt.valid || cache.batch_size() != 1 || prompt.rows() == 1) return;
  const History& history = cache.history();
  if (!history.known() || !history.all_valid() || any_forgets(model.config().layer_specs())) return;
  const TokenRows rows{prompt.ids, prompt.valid};
  const std::int64_t common = common_tokens(rows, history.ids()[0].to(prompt.ids.device()));
  if (common == 0) return;
  prompt.ids = at::zeros_like(rows.ids);
  prompt.valid = at::zeros_like(*rows.valid);
  for (std::int64_t i = 0; i < prompt.rows(); ++i) {
    const at::Tensor row = rows.row(i);
    const std::int64_t own = row.size(0) - common;
    const auto place = [&](std::int64_t column, const at::Tensor& tokens) {
      prompt.ids[i].narrow(0, column, tokens.size(0)).copy_(tokens);
      prompt.valid->select(0, i).narrow(0, column, tokens.size(0)).fill_(true);
    };
    place(0, row.narrow(0, 0, common));
    place(prompt.tokens() - own, row.narrow(0, common, own));
  }
}

}  // namespace kvcache::detail
