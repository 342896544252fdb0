#include "kvcache/models/language_model.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace kvcache {

at::Tensor LanguageModel::last_logits(const at::Tensor& hidden, std::int64_t keep) const {
  const c10::InferenceMode normal_tensors(false);
  const c10::NoGradGuard no_grad;
  const std::int64_t tokens = hidden.size(1), kept = keep == 0 ? tokens : std::min(keep, tokens);
  return head(hidden.narrow(1, tokens - kept, kept)).to(device_);
}

}  // namespace kvcache
