#include "kvcache/models/registry.h"

#include <utility>

#include "kvcache/core/errors.h"
#include "models/families.h"
#include "models/fingerprint.h"

namespace kvcache {

ModelRegistry& ModelRegistry::add(std::string_view model_type, ModelFamily family) {
  families_.insert_or_assign(std::string(model_type), std::move(family));
  return *this;
}

const ModelFamily& ModelRegistry::find(std::string_view model_type) const {
  const auto found = families_.find(model_type);
  if (found == families_.end()) {
    std::string known;
    for (const auto& [type, family] : families_) known += (known.empty() ? "" : ", ") + type;
    throw ValueError(c10::str("unknown model_type '", model_type, "'; known are ", known));
  }
  return found->second;
}

ModelRegistry model_families() {
  ModelRegistry registry;
  detail::add_gemma2(registry);
  detail::add_gemma3_text(registry);
  detail::add_jamba(registry);
  detail::add_lfm2(registry);
  detail::add_llama(registry);
  detail::add_llama4_text(registry);
  detail::add_mamba(registry);
  detail::add_mamba2(registry);
  detail::add_mistral(registry);
  detail::add_phi3(registry);
  detail::add_qwen2(registry);
  detail::add_qwen3(registry);
  detail::add_qwen3_next(registry);
  return registry;
}

namespace {

// That of the embeddings; reads no more than headers.
at::ScalarType checkpoint_dtype(const std::filesystem::path& folder, const ModelConfig& config) {
  const StateDict weights = StateDict::from_checkpoint(folder);
  const bool mamba = weights.contains("backbone.embeddings.weight");
  return weights
      .take(mamba ? "backbone.embeddings.weight" : "model.embed_tokens.weight",
            {config.vocab_size, config.hidden_size})
      .scalar_type();
}

}  // namespace

std::unique_ptr<CausalLM> load_model(const std::filesystem::path& folder,
                                     const LoadOptions& options, const ModelRegistry& families) {
  const ModelConfig config = ModelConfig::from_file(folder / "config.json", families);
  LoadOptions chosen = options;
  if (!chosen.dtype) chosen.dtype = config.dtype;
  if (!chosen.dtype) chosen.dtype = checkpoint_dtype(folder, config);
  check_value(
      *chosen.dtype == at::kFloat || *chosen.dtype == at::kBFloat16 || *chosen.dtype == at::kHalf,
      "models run in float32, bfloat16 or float16, not in ", *chosen.dtype);
  const StateDict weights = StateDict::from_checkpoint(folder, chosen);
  std::unique_ptr<CausalLM> model = families.find(config.model_type).build(config, weights, chosen);
  model->set_fingerprint(detail::fingerprint(config.model_type, folder / "config.json", weights));
  return model;
}

}  // namespace kvcache
