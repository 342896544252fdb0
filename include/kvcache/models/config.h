// What config.json says of a model, in one form for both of Transformers' styles of writing it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/core/layer_spec.h"

namespace kvcache {

class ModelRegistry;

// Rotary position embeddings, as `rope_parameters` (or rope_theta and rope_scaling) give them.
struct RopeConfig {
  std::string type = "default";  // default, linear, dynamic, yarn, longrope, llama3
  double theta = 10000;
  double factor = 1;            // linear, dynamic, yarn, llama3
  double low_freq_factor = 1;   // llama3
  double high_freq_factor = 4;  // llama3
  // Tokens of a text before scaling: dynamic, yarn, longrope, llama3.
  std::int64_t original_max_position_embeddings = 0;
  double attention_factor = 1;           // on cosines and sines; yarn, longrope
  double beta_fast = 32, beta_slow = 1;  // turns within the original length; yarn
  bool truncate = true;                  // whether bands end at whole dimensions; yarn
  std::vector<double> short_factor = {}, long_factor = {};  // one a frequency; longrope
  double partial_rotary_factor = 1;  // the share of each head, its first dimensions, that turns
};

// A mixture of experts in place of some layers' MLPs.
struct ExpertsConfig {
  std::int64_t count = 0;              // 0: the model has none
  std::int64_t per_token = 0;          // experts that a token passes through
  std::int64_t intermediate_size = 0;  // of one expert
  std::int64_t shared_size = 0;        // of the expert that all tokens pass through
  bool normalize = false;              // weights of a token's experts add up to 1
  std::vector<bool> layers = {};       // one a layer: whether it has experts
};

// Layers with convolution and recurrent states. Of sizes, each family uses some.
struct RecurrentConfig {
  std::int64_t conv_kernel = 0;     // taps of the convolution over time
  bool conv_bias = false;           // of the convolution
  bool projection_bias = false;     // of the projections into and out of a mixer
  bool wide_residual = false;       // the sums between layers are float32 whatever the dtype
  std::int64_t inner_size = 0;      // channels inside a mixer
  std::int64_t state_size = 0;      // numbers of state a channel; mamba
  std::int64_t time_step_rank = 0;  // mamba
  // Matrix states: each of key_heads serves heads / key_heads neighbours.
  std::int64_t key_heads = 0, heads = 0;
  std::int64_t key_dim = 0, value_dim = 0;
  double least_time_step = 0;  // mamba2
  double largest_time_step = std::numeric_limits<double>::infinity();
  // What a cache keeps of each such layer. Absent: taken from the first states that arrive.
  std::optional<StateSizes> states = {};
};

// Scales queries by 1 + scale * log(1 + floor((position + 1) / floor_scale)).
struct TemperatureTuning {
  double floor_scale;  // tokens
  double scale;
};

// An encoder, and a decoder that attends to its output, of the T5 kind.
struct Seq2SeqConfig {
  std::int64_t encoder_layers = 0;           // num_hidden_layers counts the decoder's
  std::int64_t relative_buckets = 32;        // of distances between tokens; each has a bias
  std::int64_t relative_max_distance = 128;  // tokens; farther ones are in the last bucket
  bool gated_mlp = false;
  bool scale_outputs = true;  // the head reads hidden states / sqrt(hidden_size)
  std::optional<std::int64_t> decoder_start_token_id = {};  // the decoder's first token
};

struct ModelConfig {
  std::string model_type = {};
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;      // 0 before reading: as many as attention heads
  std::int64_t head_dim = 0;                 // 0 before reading: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 0;  // tokens
  std::string hidden_act = "silu";
  double rms_norm_eps = 1e-6;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  RopeConfig rope = {};
  std::map<std::string, RopeConfig> layer_ropes = {};  // of some layer types, in place of `rope`
  std::vector<bool> rope_layers = {};  // one a layer: whether it has rope; empty: all have
  std::optional<double> query_pre_attn_scalar = {};  // scores are divided by its square root
  std::optional<double> attn_logit_softcapping = {};
  std::optional<double> final_logit_softcapping = {};
  std::optional<TemperatureTuning> temperature_tuning = {};  // of layers without rope
  bool use_qk_norm = false;
  ExpertsConfig experts = {};
  RecurrentConfig recurrent = {};
  std::optional<Seq2SeqConfig> seq2seq = {};  // absent: a decoder alone

  std::vector<std::string> layer_types = {};              // one a layer, Transformers' names
  std::optional<std::int64_t> sliding_window = {};        // tokens, of sliding layers
  std::optional<std::int64_t> attention_chunk_size = {};  // tokens, of chunked layers

  std::optional<std::int64_t> bos_token_id = {};
  std::optional<std::int64_t> pad_token_id = {};
  std::vector<std::int64_t> eos_token_ids = {};
  std::optional<at::ScalarType> dtype = {};  // of the checkpoint, where it says so

  // Reads config.json (from_folder: the one in a checkpoint's folder). What is absent gets the
  // default of the family's config class in Transformers. Throws ValueError for an unknown
  // model_type, rope type or activation, listing what is known, and for values of another type,
  // out of range, or that contradict each other, naming the field.
  static ModelConfig from_file(const std::filesystem::path& path);
  static ModelConfig from_folder(const std::filesystem::path& folder);
  static ModelConfig from_file(const std::filesystem::path& path, const ModelRegistry& families);

  // The layers of a cache for this model, as Transformers' get_layer_types_and_kwargs finds them.
  // Throws ValueError if a sliding or chunked layer has no window or chunk size.
  std::vector<LayerSpec> layer_specs() const;
};

}  // namespace kvcache
