#include "generation/loop_parts.h"

#include <ATen/ops/zeros.h>

#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"

namespace kvcache::detail {

ProcessorStart processor_start(const LanguageModel& model, const Prompt& prompt, const Cache* cache,
                               std::int64_t max_length) {
  const TokenRows text = whole_text(prompt, cache);
  return {.text = text,
          .read = model.is_encoder_decoder() ? encoder_rows(prompt, cache) : text,
          .max_length = max_length,
          .vocab_size = model.config().vocab_size};
}

void check_generator(const Inputs& inputs, const at::Tensor& ids) {
  check_value(inputs.generator && inputs.generator->defined(),
              "do_sample needs a generator to draw from, such as make_generator(seed)");
  check_value(inputs.generator->device() == ids.device(), "the generator is on ",
              inputs.generator->device(), ", but the inputs are on ", ids.device(),
              "; put both on one device");
}

void check_capacity(const Cache& cache, std::int64_t max_length) {
  const std::int64_t fed = max_length - 1;
  check_value(fed <= cache.capacity().value_or(fed), "the text may become ", max_length,
              " tokens long, of which the cache is to hold ", fed, ", but it has room for ",
              cache.capacity().value_or(0),
              "; lower max_new_tokens or make the cache with a larger max_cache_len");
}

at::Tensor processed(const LogitsProcessors& processors, const TokenRows& text, at::Tensor scores) {
  const std::vector<std::int64_t> shape = scores.sizes().vec();
  for (const auto& processor : processors) scores = processor->process(text, scores);
  check_state(scores.sizes() == shape, "a logits processor made scores of shape ", scores.sizes(),
              " out of ", at::IntArrayRef(shape), "; it must keep the shape");
  return scores;
}

at::Tensor completed(const StoppingCriteria& criteria, const TokenRows& text) {
  at::Tensor result = at::zeros({text.ids.size(0)}, text.ids.options().dtype(at::kBool));
  for (const auto& criterion : criteria) {
    const at::Tensor complete = criterion->complete(text);
    check_state(complete.sizes() == result.sizes() && complete.scalar_type() == at::kBool,
                "a stopping criterion gave ", dtype_name(complete), " ", complete.sizes(),
                "; it must give bool ", result.sizes(), ", one a row");
    result = result.logical_or(complete);
  }
  return result;
}

}  // namespace kvcache::detail
