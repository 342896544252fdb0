#include "kvcache/models/registry.h"

#include <utility>

#include "io/posix_file.h"
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
  detail::add_t5(registry);
  return registry;
}

namespace {

// That of the embeddings; reads no more than headers.
at::ScalarType checkpoint_dtype(const std::filesystem::path& folder, const ModelConfig& config) {
  const StateDict weights = StateDict::from_checkpoint(folder);
  const auto name_of = [&]() -> const char* {
    if (config.seq2seq) return "shared.weight";
    const char* mamba = "backbone.embeddings.weight";
    return weights.contains(mamba) ? mamba : "model.embed_tokens.weight";
  };
  return weights.take(name_of(), {config.vocab_size, config.hidden_size}).scalar_type();
}

template <typename Model>
std::unique_ptr<Model> build(const ModelFamily::Build<Model>& make, const ModelConfig& config,
                             const std::filesystem::path& folder, const LoadOptions& options) {
  LoadOptions chosen = options;
  if (!chosen.dtype) chosen.dtype = config.dtype;
  if (!chosen.dtype) chosen.dtype = checkpoint_dtype(folder, config);
  check_value(
      *chosen.dtype == at::kFloat || *chosen.dtype == at::kBFloat16 || *chosen.dtype == at::kHalf,
      "models run in float32, bfloat16 or float16, not in ", *chosen.dtype);
  const StateDict weights = StateDict::from_checkpoint(folder, chosen);
  std::unique_ptr<Model> model = make(config, weights, chosen);
  model->set_fingerprint(detail::fingerprint(config.model_type, folder / "config.json", weights));
  return model;
}

ModelConfig read_config(const std::filesystem::path& folder, const ModelRegistry& families) {
  detail::check_checkpoint_folder(folder);
  return ModelConfig::from_file(folder / "config.json", families);
}

}  // namespace

std::unique_ptr<LanguageModel> load_language_model(const std::filesystem::path& folder,
                                                   const LoadOptions& options,
                                                   const ModelRegistry& families) {
  const ModelConfig config = read_config(folder, families);
  const ModelFamily& family = families.find(config.model_type);
  if (family.build_seq2seq) return build(family.build_seq2seq, config, folder, options);
  return build(family.build, config, folder, options);
}

std::unique_ptr<CausalLM> load_model(const std::filesystem::path& folder,
                                     const LoadOptions& options, const ModelRegistry& families) {
  const ModelConfig config = read_config(folder, families);
  const ModelFamily& family = families.find(config.model_type);
  check_value(family.build != nullptr, folder.string(), " is a ", config.model_type,
              ", a model with an encoder; load it by load_seq2seq_model or load_language_model");
  return build(family.build, config, folder, options);
}

std::unique_ptr<Seq2SeqLM> load_seq2seq_model(const std::filesystem::path& folder,
                                              const LoadOptions& options,
                                              const ModelRegistry& families) {
  const ModelConfig config = read_config(folder, families);
  const ModelFamily& family = families.find(config.model_type);
  check_value(family.build_seq2seq != nullptr, folder.string(), " is a ", config.model_type,
              ", a model without an encoder; load it by load_model or load_language_model");
  return build(family.build_seq2seq, config, folder, options);
}

}  // namespace kvcache
