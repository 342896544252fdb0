#include "kvcache/models/config.h"

#include "kvcache/core/errors.h"
#include "kvcache/models/registry.h"

namespace kvcache {

ModelConfig ModelConfig::from_file(const std::filesystem::path& path) {
  return from_file(path, model_families());
}

ModelConfig ModelConfig::from_folder(const std::filesystem::path& folder) {
  return from_file(folder / "config.json");
}

ModelConfig ModelConfig::from_file(const std::filesystem::path& path,
                                   const ModelRegistry& families) {
  const ConfigReader json = ConfigReader::from_file(path);
  const std::optional<std::string> type = json.text("model_type");
  check_value(type.has_value(), json.field("model_type"), " is missing; it names the family");
  return families.find(*type).read_config(json);
}

std::vector<LayerSpec> ModelConfig::layer_specs() const {
  std::vector<LayerSpec> specs;
  for (const std::string& type : layer_types) {
    LayerSpec spec{.type = type};
    if (has_states(spec)) spec.state_sizes = recurrent.states;
    if (type != kLinearAttention && type != kConvolution) {
      spec.kv_heads = num_key_value_heads;
      spec.key_dim = spec.value_dim = head_dim;
    }
    if (type == kSlidingAttention || type == kHybridSliding) {
      check_value(sliding_window.has_value(), "a ", type, " layer needs a sliding_window");
      spec.window = *sliding_window;
    } else if (type == kChunkedAttention) {
      check_value(attention_chunk_size.has_value(), "a ", type,
                  " layer needs an attention_chunk_size");
      spec.window = *attention_chunk_size;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace kvcache
