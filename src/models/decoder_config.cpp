#include "models/decoder_config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kvcache/core/errors.h"
#include "kvcache/models/activations.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxHeads = 65'536;
constexpr std::int64_t kMaxHeadDim = 65'536;
constexpr std::int64_t kQwenWindow = 4096;
constexpr std::int64_t kQwenMaxWindowLayers = 28;

void read_heads(const ConfigReader& json, ModelConfig& config) {
  config.num_attention_heads =
      json.size("num_attention_heads", kMaxHeads).value_or(config.num_attention_heads);
  // null and, in some families, absence mean: as many as attention heads.
  if (json.contains("num_key_value_heads") || config.num_key_value_heads == 0) {
    config.num_key_value_heads =
        json.size("num_key_value_heads", kMaxHeads).value_or(config.num_attention_heads);
  }
  check_value(config.num_attention_heads % config.num_key_value_heads == 0,
              json.field("num_attention_heads"), " is ", config.num_attention_heads,
              "; it must be a multiple of num_key_value_heads, ", config.num_key_value_heads);
  if (const auto head_dim = json.size("head_dim", kMaxHeadDim)) config.head_dim = *head_dim;
  if (config.head_dim == 0) {
    check_value(config.hidden_size % config.num_attention_heads == 0, json.field("hidden_size"),
                " is ", config.hidden_size,
                "; without head_dim it must be a multiple of "
                "num_attention_heads, ",
                config.num_attention_heads);
    config.head_dim = config.hidden_size / config.num_attention_heads;
    check_value(config.head_dim <= kMaxHeadDim, json.field("hidden_size"), " is ",
                config.hidden_size, ", which makes heads of ", config.head_dim,
                "; they can have at most ", kMaxHeadDim);
  }
  check_value(config.head_dim % 2 == 0, json.field("head_dim"), " is ", config.head_dim,
              "; rotary embeddings need an even one");
}

std::optional<std::int64_t> single_id(const ConfigReader& json, std::string_view name,
                                      std::optional<std::int64_t> fallback) {
  if (!json.contains(name)) return fallback;
  const std::optional<std::int64_t> id = json.integer(name);
  return id && *id >= 0 ? id : std::nullopt;
}

std::optional<at::ScalarType> read_dtype(const ConfigReader& json) {
  const std::string_view key = json.text("dtype") ? "dtype" : "torch_dtype";
  std::optional<std::string> name = json.text(key);
  if (!name) return std::nullopt;
  if (name->starts_with("torch.")) name = name->substr(6);
  if (*name == "float32") return at::kFloat;
  if (*name == "bfloat16") return at::kBFloat16;
  if (*name == "float16") return at::kHalf;
  throw ValueError(
      c10::str(json.field(key), " is '", *name, "'; known are float32, bfloat16, float16"));
}

}  // namespace

ModelConfig read_base_config(const ConfigReader& json, ModelConfig config) {
  config.model_type = json.text("model_type").value_or(config.model_type);
  config.vocab_size = json.size("vocab_size").value_or(config.vocab_size);
  config.hidden_size = json.size("hidden_size").value_or(config.hidden_size);
  config.intermediate_size = json.size("intermediate_size").value_or(config.intermediate_size);
  config.num_hidden_layers =
      json.size("num_hidden_layers", kMaxLayers).value_or(config.num_hidden_layers);
  config.hidden_act = json.text("hidden_act").value_or(config.hidden_act);
  find_activation(config.hidden_act);  // throws, listing the known ones
  config.tie_word_embeddings =
      json.flag("tie_word_embeddings").value_or(config.tie_word_embeddings);
  config.bos_token_id = single_id(json, "bos_token_id", config.bos_token_id);
  config.pad_token_id = single_id(json, "pad_token_id", config.pad_token_id);
  if (json.contains("eos_token_id")) {
    config.eos_token_ids = json.ids("eos_token_id").value_or(std::vector<std::int64_t>{});
  }
  config.dtype = read_dtype(json);
  return config;
}

double read_norm_eps(const ConfigReader& json, std::string_view name, double fallback) {
  const double eps = json.number(name).value_or(fallback);
  constexpr double kLargest = std::numeric_limits<float>::max();  // norms compute in float32
  check_value(eps >= 0 && eps <= kLargest, json.field(name), " is ", eps, "; it must be from 0 to ",
              kLargest);
  return eps;
}

ModelConfig read_decoder_config(const ConfigReader& json, ModelConfig config,
                                const RopeRules& rope) {
  config = read_base_config(json, std::move(config));
  config.max_position_embeddings =
      json.size("max_position_embeddings").value_or(config.max_position_embeddings);
  read_heads(json, config);
  config.rms_norm_eps = read_norm_eps(json, "rms_norm_eps", config.rms_norm_eps);
  config.rope = read_rope(json, config, rope);
  return config;
}

std::vector<std::string> read_layer_types(const ConfigReader& json, const ModelConfig& config,
                                          std::vector<std::string> derived) {
  std::vector<std::string> types = json.texts("layer_types").value_or(std::move(derived));
  const std::string field = json.field("layer_types");
  check_value(static_cast<std::int64_t>(types.size()) == config.num_hidden_layers, field, " has ",
              types.size(), " entries, but num_hidden_layers is ", config.num_hidden_layers);
  const std::string_view partial =
      config.attention_chunk_size ? kChunkedAttention : kSlidingAttention;
  for (const std::string& type : types) {
    check_value(type == kFullAttention || type == partial, field, " has '", type,
                "'; known for this family are ", kFullAttention, ", ", partial);
    check_value(type != kSlidingAttention || config.sliding_window, field, " has '", type,
                "', but no sliding_window is in force");
  }
  return types;
}

std::vector<std::string> uniform_layer_types(const ConfigReader& json, const ModelConfig& config,
                                             std::string_view type) {
  const std::vector<std::string> uniform(static_cast<std::size_t>(config.num_hidden_layers),
                                         std::string(type));
  check_value(read_layer_types(json, config, uniform) == uniform, json.field("layer_types"),
              " must say ", type, " for every layer of this ", config.model_type, " model");
  return uniform;
}

std::optional<double> read_softcap(const ConfigReader& json, std::string_view name,
                                   std::optional<double> fallback) {
  if (!json.contains(name)) return fallback;
  const std::optional<double> cap = json.number(name);
  check_value(!cap || *cap > 0, json.field(name), " is ", cap.value_or(0),
              "; it must be above 0, or null for none");
  return cap;
}

void read_optional_windows(const ConfigReader& json, ModelConfig& config) {
  const bool windows = json.flag("use_sliding_window").value_or(false);
  const std::int64_t first =
      json.integer("max_window_layers").value_or(kQwenMaxWindowLayers);  // layers before: full
  if (windows && (json.size("sliding_window") || !json.contains("sliding_window"))) {
    config.sliding_window = json.size("sliding_window").value_or(kQwenWindow);
  }
  std::vector<std::string> derived;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    derived.emplace_back(config.sliding_window && layer >= first ? kSlidingAttention
                                                                 : kFullAttention);
  }
  config.layer_types = read_layer_types(json, config, std::move(derived));
}

}  // namespace kvcache::detail
