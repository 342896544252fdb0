#include "generation/prompt.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

bool is_integer(const at::Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

at::Tensor checked_ids(const Inputs& inputs, const GenerationConfig& config,
                       std::int64_t vocab_size) {
  at::Tensor ids = inputs.input_ids;
  if (!ids.defined()) {
    check_value(config.bos_token_id.has_value(),
                "there are no input_ids to start from; pass some, or set bos_token_id");
    check_value(!inputs.attention_mask, "there is an attention_mask, but no input_ids");
    ids = at::full({1, 1}, *config.bos_token_id, at::kLong);
  }
  check_value(ids.dim() == 2 && (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              "input_ids must be int64 or int32 [batch, tokens], but are ", ids.dtype(), " ",
              ids.sizes());
  check_value(ids.size(0) > 0 && ids.size(1) > 0,
              "input_ids must hold at least one row and one token, but have shape ", ids.sizes(),
              "; leave them out to start from bos_token_id");
  const auto smallest = ids.min().item<std::int64_t>();
  const auto largest = ids.max().item<std::int64_t>();
  check_value(smallest >= 0 && largest < vocab_size, "input_ids hold ",
              smallest < 0 ? smallest : largest, ", which is no token of a vocabulary of ",
              vocab_size);
  return ids.to(at::kLong);
}

// Index of the first false of bool [n]; n if there is none.
std::int64_t first_false(const at::Tensor& flags) {
  const at::Tensor where = flags.logical_not().nonzero();
  return where.numel() > 0 ? where[0].item<std::int64_t>() : flags.numel();
}

// bool [batch, tokens or cached + tokens] on the ids' device; absent if no row has padding.
std::optional<at::Tensor> checked_mask(const Inputs& inputs, const at::Tensor& ids,
                                       std::int64_t cached) {
  if (!inputs.attention_mask) return std::nullopt;
  const at::Tensor& mask = *inputs.attention_mask;
  const std::int64_t tokens = ids.size(1);
  check_value(mask.defined() && (is_integer(mask) || mask.scalar_type() == at::kBool),
              "attention_mask must hold integers or bools");
  check_value(mask.dim() == 2 && mask.size(0) == ids.size(0) &&
                  (mask.size(1) == tokens || mask.size(1) == cached + tokens),
              "attention_mask must have the shape of input_ids, ", ids.sizes(), ", or include the ",
              cached, " cached tokens: [", ids.size(0), ", ", cached + tokens, "]; but it is ",
              mask.sizes());
  at::Tensor valid = mask.to(ids.device(), at::kBool);
  check_value(mask.eq(1).logical_or(mask.eq(0)).all().item<bool>(),
              "attention_mask must hold 0 for padding and 1 for tokens, nothing else");
  const at::Tensor last = valid.select(1, -1);
  check_value(last.all().item<bool>(), "row ", first_false(last),
              " of attention_mask ends in padding, so that no token could follow; pad on the left");
  if (valid.all().item<bool>() && cached == 0) return std::nullopt;
  return valid;
}

void check_cache(const Prompt& prompt, const Cache& cache) {
  if (cache.batch_size() == 0 || cache.batch_size() == prompt.rows()) return;
  throw ValueError(c10::str(
      "the cache holds ", cache.batch_size(), " rows, but ", prompt.rows(),
      " sequences are to be made (rows of input_ids x num_return_sequences); change its rows with "
      "batch_repeat_interleave or batch_select_indices, or reset it"));
}

// Index of the first row of bool [rows, columns] with a false after a true; the number of rows if
// there is none.
std::int64_t first_row_with_holes(const at::Tensor& valid) {
  const at::Tensor holes = valid.cumsum(1).gt(0).logical_and(valid.logical_not());
  return first_false(holes.any(1).logical_not());
}

bool has_windows(const CausalLM& model) {
  const std::vector<LayerSpec> layers = model.config().layer_specs();
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return layer.window > 0; });
}

// A window counts columns, so pads between a row's tokens would push tokens out of it that the row
// alone would still see.
void check_continuation(const Prompt& prompt, const CausalLM& model, const Cache& cache) {
  const bool own_past = prompt.valid && prompt.valid->size(1) > prompt.tokens();
  if (!prompt.continuation || own_past || cache.history().all_valid()) return;
  if (!has_windows(model)) return;
  const at::Tensor valid = cache.history().valid();
  const std::int64_t row = first_row_with_holes(valid);
  check_state(row == valid.size(0), "row ", row,
              " of the cache holds padding between its tokens (it had ended before others), which "
              "layers with a window cannot go on from; pass the whole text instead, padded on the "
              "left");
}

// The same within the prompt's own mask.
void check_holes(const Prompt& prompt, const CausalLM& model) {
  if (!prompt.valid || !has_windows(model)) return;
  const std::int64_t row = first_row_with_holes(*prompt.valid);
  check_value(
      row == prompt.rows(), "row ", row,
      " of attention_mask has padding between its tokens, which layers with a window cannot "
      "leave out; pass the row without it, padded on the left");
}

}  // namespace

Prompt make_prompt(const Inputs& inputs, const GenerationConfig& config, const CausalLM& model,
                   Cache* cache) {
  const std::int64_t cached = cache == nullptr ? 0 : cache->history().seen();
  check_value(cache != nullptr || !inputs.continuation,
              "a continuation needs the cache that it continues, as past_key_values");
  Prompt prompt;
  prompt.ids = checked_ids(inputs, config, model.config().vocab_size);
  prompt.valid = checked_mask(inputs, prompt.ids, cached);
  prompt.continuation = cached > 0 && (inputs.continuation ||
                                       (prompt.valid && prompt.valid->size(1) > prompt.tokens()));
  if (const std::int64_t copies = config.num_return_sequences.value_or(1); copies > 1) {
    prompt.ids = prompt.ids.repeat_interleave(copies, 0);
    if (prompt.valid) prompt.valid = prompt.valid->repeat_interleave(copies, 0);
  }
  prompt.ids = prompt.ids.contiguous();
  check_holes(prompt, model);
  if (cache != nullptr) {
    cache->check_fits(model.config().layer_specs(), model.dtype());
    check_cache(prompt, *cache);
    check_continuation(prompt, model, *cache);
  }
  return prompt;
}

TokenRows whole_text(const Prompt& prompt, const Cache* cache) {
  if (!prompt.continuation) return {prompt.ids, prompt.valid};
  const History& history = cache->history();
  const auto like_past = [&](at::ScalarType dtype) {
    return at::zeros({prompt.rows(), history.seen()}, prompt.ids.options().dtype(dtype));
  };
  const at::Device device = prompt.ids.device();
  const bool known = history.known();
  const at::Tensor past_ids = known ? history.ids().to(device) : like_past(at::kLong);
  const at::Tensor ids = at::cat({past_ids, prompt.ids}, 1);
  if (known && prompt.valid && prompt.valid->size(1) == ids.size(1)) return {ids, prompt.valid};
  if (known && !prompt.valid && history.all_valid()) return {ids};
  const at::Tensor past_valid = known ? history.valid().to(device) : like_past(at::kBool);
  const auto new_valid = prompt.last_valid(prompt.tokens());
  return {ids,
          at::cat({past_valid, new_valid ? *new_valid : at::ones_like(prompt.ids, at::kBool)}, 1)};
}

std::int64_t keep_common_prefix(const Prompt& prompt, Cache& cache) {
  const std::int64_t seen = cache.history().seen();
  if (prompt.continuation || seen == 0) return 0;
  // The last token is computed again if need be: its scores are what generation starts from.
  const std::int64_t most = prompt.tokens() - 1;
  std::optional<at::Tensor> valid = prompt.valid;
  if (valid) valid = valid->narrow(1, 0, most);
  const std::int64_t keep = cache.can_reuse(prompt.ids.narrow(1, 0, most), valid);
  if (keep > 0) {
    if (keep < seen) cache.crop(keep - seen);
    return keep;
  }
  cache.reset();
  return 0;
}

}  // namespace kvcache::detail
