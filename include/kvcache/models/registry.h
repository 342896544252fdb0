// Model families by config.json's model_type: a value that is filled by explicit functions and
// passed in, so that users can add families of their own.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/causal_lm.h"
#include "kvcache/models/config.h"
#include "kvcache/models/config_reader.h"
#include "kvcache/models/language_model.h"
#include "kvcache/models/seq2seq_lm.h"

namespace kvcache {

struct ModelFamily {
  // Reads config.json; throws ValueError naming the field at fault.
  std::function<ModelConfig(const ConfigReader&)> read_config;
  template <typename Model>
  using Build = std::function<std::unique_ptr<Model>(const ModelConfig&, const StateDict&,
                                                     const LoadOptions&)>;
  // Makes the model; the options' dtype is set. Throws ValueError for weights that do not fit. One
  // of the two: that of a decoder alone, or that of a model with an encoder, whose config says so.
  Build<CausalLM> build = {};
  Build<Seq2SeqLM> build_seq2seq = {};
};

class ModelRegistry {
 public:
  // Adds a family, or replaces the one of that name.
  ModelRegistry& add(std::string_view model_type, ModelFamily family);

  // Throws ValueError, listing the known families, if `model_type` is not among them.
  const ModelFamily& find(std::string_view model_type) const;

 private:
  std::map<std::string, ModelFamily, std::less<>> families_;
};

// gemma2, gemma3_text, jamba, lfm2, llama, llama4_text, mamba, mamba2, mistral, phi3, qwen2, qwen3,
// qwen3_next, t5.
ModelRegistry model_families();

// Loads a checkpoint in Transformers' format: config.json and model.safetensors, or its shards.
// Without options.dtype the checkpoint's own: config.json's, else that of its embeddings. Weights
// lie in the mapped files where dtype and device allow. Throws ValueError for a config or weights
// that are damaged, unknown or do not fit, and for a dtype other than float32, bfloat16, float16.
std::unique_ptr<LanguageModel> load_language_model(
    const std::filesystem::path& folder, const LoadOptions& options = {},
    const ModelRegistry& families = model_families());

// The same for a decoder alone. Throws ValueError for a model with an encoder, too.
std::unique_ptr<CausalLM> load_model(const std::filesystem::path& folder,
                                     const LoadOptions& options = {},
                                     const ModelRegistry& families = model_families());

// The same for a model with an encoder. Throws ValueError for a decoder alone, too.
std::unique_ptr<Seq2SeqLM> load_seq2seq_model(const std::filesystem::path& folder,
                                              const LoadOptions& options = {},
                                              const ModelRegistry& families = model_families());

}  // namespace kvcache
