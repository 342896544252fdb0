#include "models/checked_input.h"

#include <algorithm>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {
namespace {

// A window counts columns, a convolution would reach over padding, and a state fade under it.
// valid: bool [batch, seen + tokens] on the CPU.
void check_no_gaps(const at::Tensor& valid, std::int64_t seen) {
  const at::Tensor rows = valid.contiguous();
  const std::int64_t columns = rows.size(1);
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const bool* row = rows.const_data_ptr<bool>() + i * columns;
    const bool* first = std::find(row, row + columns, true);
    const bool* pad = std::find(first, row + columns, false);
    const bool* next = std::find(std::max(pad, row + seen), row + columns, true);
    check_value(next == row + columns, "row ", i, " has padding at column ", pad - row,
                ", between its tokens, which layers with a window or with convolution or recurrent "
                "states cannot leave out; pass the whole text instead, padded on the left");
  }
}

// past, given: bool [batch, seen] on the CPU.
void check_past(const at::Tensor& past, const at::Tensor& given, bool may_end_earlier) {
  const std::int64_t columns = past.size(1);
  for (std::int64_t i = 0; i < past.size(0); ++i) {
    const bool* before = past.const_data_ptr<bool>() + i * columns;
    const bool* now = given.const_data_ptr<bool>() + i * columns;
    const auto [was, is] = std::mismatch(before, before + columns, now);
    if (was == before + columns) continue;
    const bool ends_earlier = std::find(is, now + columns, true) == now + columns;
    check_value(
        may_end_earlier && ends_earlier, "the attention mask calls column ", is - now, " of row ",
        i, *is ? " a token" : " padding", ", but it was fed as ", *was ? "a token" : "padding",
        ", and what the cache holds was computed so; pass the mask that it was fed with, or "
        "reset() the cache and pass the whole text");
  }
}

}  // namespace

void check_padding(const Step& step, const std::optional<at::Tensor>& valid,
                   const std::vector<LayerSpec>& layers) {
  const bool counts_columns = any_forgets(layers);
  if (step.past_valid() && step.history().known()) {
    check_past(step.history().valid().contiguous(), *step.past_valid(), !counts_columns);
  }
  if (valid && counts_columns) check_no_gaps(*valid, step.seen());
}

at::Tensor checked_ids(const at::Tensor& ids, std::int64_t vocab_size, std::string_view name) {
  check_value(ids.defined() && ids.dim() == 2 &&
                  (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              name, " must be an integer tensor [batch, tokens], but are ",
              ids.defined() ? c10::str(dtype_name(ids), " ", ids.sizes()) : "undefined");
  check_value(ids.numel() > 0, name, " are empty, ", ids.sizes(),
              "; a forward pass needs at least one token a row (the beginning-of-text token, if "
              "there is no text)");
  at::Tensor host = ids.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    check_value(data[i] >= 0 && data[i] < vocab_size, "token id ", data[i], " in row ",
                i / host.size(1), ", column ", i % host.size(1), " is outside the vocabulary of ",
                vocab_size);
  }
  return host;
}

std::optional<at::Tensor> checked_mask(const std::optional<at::Tensor>& mask) {
  if (!mask) return std::nullopt;
  check_value(mask->defined() && at::isIntegralType(mask->scalar_type(), /*includeBool=*/true),
              "the attention mask must hold integers or booleans [batch, tokens], but is ",
              mask->defined() ? c10::str(dtype_name(*mask), " ", mask->sizes()) : "undefined");
  const at::Tensor host = mask->to(at::kCPU);
  at::Tensor real = host.to(at::kBool);
  check_value(host.to(at::kLong).equal(real.to(at::kLong)),
              "the attention mask must hold 0 for padding and 1 for real tokens, nothing else");
  return real;
}

void check_logits_to_keep(const ForwardInput& input) {
  check_value(input.logits_to_keep >= 0, "logits_to_keep is ", input.logits_to_keep,
              "; it must be a number of positions, or 0 for all");
}

}  // namespace kvcache::detail
