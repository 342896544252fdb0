#include "models/checked_input.h"

#include "kvcache/core/errors.h"

namespace kvcache::detail {

at::Tensor checked_ids(const at::Tensor& ids, std::int64_t vocab_size, std::string_view name) {
  check_value(ids.defined() && ids.dim() == 2 &&
                  (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              name, " must be an integer tensor [batch, tokens], but are ",
              ids.defined() ? c10::str(ids.dtype(), " ", ids.sizes()) : "undefined");
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
              mask->defined() ? c10::str(mask->dtype(), " ", mask->sizes()) : "undefined");
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
