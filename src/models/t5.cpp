#include <ATen/ops/arange.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "kvcache/core/errors.h"
#include "kvcache/models/activations.h"
#include "kvcache/models/linear.h"
#include "kvcache/models/relative_position_bias.h"
#include "kvcache/models/rms_norm.h"
#include "kvcache/models/seq2seq_lm.h"
#include "models/decoder_config.h"
#include "models/families.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxSize = 65'536;  // of heads, and numbers of heads and buckets

// Of the sums between blocks: float16's range is too small for them.
at::ScalarType wide(at::ScalarType dtype) { return dtype == at::kHalf ? at::kFloat : dtype; }

// "relu", "gated-gelu" and the like: whether the MLP is gated, and its activation.
std::pair<bool, std::string> read_mlp(const ConfigReader& json) {
  std::string name = json.text("feed_forward_proj").value_or("relu");
  if (name == "gated-gelu") return {true, "gelu_new"};
  const bool gated = name.starts_with("gated-");
  if (gated) name = name.substr(6);
  find_activation(name);  // throws, listing the known ones
  return {gated, name};
}

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_base_config(json, {.vocab_size = 32128,
                                               .hidden_size = 512,
                                               .intermediate_size = 2048,
                                               .num_hidden_layers = 6,
                                               .num_attention_heads = 8,
                                               .head_dim = 64,
                                               .tie_word_embeddings = true,
                                               .pad_token_id = 0,
                                               .eos_token_ids = {1}});
  Seq2SeqConfig& pair = config.seq2seq.emplace();
  config.hidden_size = json.size("d_model").value_or(config.hidden_size);
  config.intermediate_size = json.size("d_ff").value_or(config.intermediate_size);
  config.num_attention_heads =
      json.size("num_heads", kMaxSize).value_or(config.num_attention_heads);
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = json.size("d_kv", kMaxSize).value_or(config.head_dim);
  pair.encoder_layers = json.size("num_layers", kMaxLayers).value_or(config.num_hidden_layers);
  config.num_hidden_layers =
      json.size("num_decoder_layers", kMaxLayers).value_or(pair.encoder_layers);
  config.rms_norm_eps = read_norm_eps(json, "layer_norm_epsilon", config.rms_norm_eps);
  const auto [gated, activation] = read_mlp(json);
  pair.gated_mlp = gated;
  config.hidden_act = activation;
  pair.relative_buckets =
      json.size("relative_attention_num_buckets", kMaxSize).value_or(pair.relative_buckets);
  pair.relative_max_distance =
      json.size("relative_attention_max_distance").value_or(pair.relative_max_distance);
  check_value(pair.relative_buckets >= 4 && pair.relative_max_distance > pair.relative_buckets / 2,
              json.field("relative_attention_num_buckets"), " is ", pair.relative_buckets,
              "; it must be at least 4, and half of it less than relative_attention_max_distance, ",
              pair.relative_max_distance);
  // Transformers writes the one field, and reads it off the other in older files.
  pair.scale_outputs =
      json.flag("scale_decoder_outputs").value_or(json.flag("tie_word_embeddings").value_or(true));
  pair.decoder_start_token_id = json.integer("decoder_start_token_id");
  config.layer_types = std::vector<std::string>(static_cast<std::size_t>(config.num_hidden_layers),
                                                std::string(kFullAttention));
  return config;
}

struct Attention {
  RmsNorm norm;
  Linear query, key, value, output;
  std::int64_t head_dim;

  static constexpr double kScale = 1;  // scores are not scaled

  // [rows * tokens, heads * head_dim] -> [rows, heads, tokens, head_dim]
  at::Tensor heads(const at::Tensor& projected, std::int64_t rows) const {
    return projected.view({rows, projected.size(0) / rows, -1, head_dim}).transpose(1, 2);
  }

  // Of states [rows * tokens, hidden_size].
  KeyValue keys_of(const at::Tensor& states, std::int64_t rows) const {
    return {heads(key(states), rows), heads(value(states), rows)};
  }

  at::Tensor join(const at::Tensor& attended) const {
    const at::Tensor rows = attended.transpose(1, 2);
    return output(rows.reshape({rows.size(0) * rows.size(1), -1}));
  }
};

struct Mlp {
  RmsNorm norm;
  Linear inner;
  std::optional<Linear> up;     // where gated
  Linear output;                // in output_dtype
  at::ScalarType output_dtype;  // as the sums'
  Activation activation;

  at::Tensor operator()(const at::Tensor& hidden) const {
    at::Tensor states = activation(inner(hidden));
    if (up) states.mul_((*up)(hidden));
    return output(states.to(output_dtype));
  }
};

struct Block {
  Attention self;
  std::optional<Attention> cross;  // in the decoder
  Mlp mlp;
};

struct Stack {
  std::vector<Block> blocks;
  RmsNorm norm;
  RelativePositionBias bias;  // of all blocks
};

class BlockReader {
 public:
  BlockReader(const ModelConfig& config, at::ScalarType dtype)
      : config_(config), wide_(wide(dtype)) {}

  Stack stack(const StateDict& weights, std::int64_t layers, bool decoder) const {
    Stack stack;
    for (std::int64_t i = 0; i < layers; ++i) {
      const StateDict parts = weights.select("block." + std::to_string(i) + ".layer");
      Attention self = attention(parts.select("0"), "SelfAttention");
      std::optional<Attention> cross;
      if (decoder) cross = attention(parts.select("1"), "EncDecAttention");
      stack.blocks.push_back(
          {std::move(self), std::move(cross), mlp(parts.select(decoder ? "2" : "1"))});
    }
    stack.norm = {weights.take("final_layer_norm.weight", {config_.hidden_size}),
                  config_.rms_norm_eps};
    const Seq2SeqConfig& pair = *config_.seq2seq;
    stack.bias = {weights.take("block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                               {pair.relative_buckets, config_.num_attention_heads}),
                  {.count = pair.relative_buckets,
                   .max_distance = pair.relative_max_distance,
                   .bidirectional = !decoder}};
    return stack;
  }

 private:
  RmsNorm norm(const StateDict& weights) const {
    return {weights.take("layer_norm.weight", {config_.hidden_size}), config_.rms_norm_eps};
  }

  Attention attention(const StateDict& weights, const char* name) const {
    const StateDict own = weights.select(name);
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inner = config_.num_attention_heads * config_.head_dim;
    const LinearShape into{.out = inner, .in = hidden};
    return {norm(weights),
            Linear::read(own.select("q"), into),
            Linear::read(own.select("k"), into),
            Linear::read(own.select("v"), into),
            Linear::read(own.select("o"), {.out = hidden, .in = inner}),
            config_.head_dim};
  }

  Mlp mlp(const StateDict& weights) const {
    const StateDict own = weights.select("DenseReluDense");
    const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
    const LinearShape into{.out = inner, .in = hidden};
    const bool gated = config_.seq2seq->gated_mlp;
    return {norm(weights),
            Linear::read(own.select(gated ? "wi_0" : "wi"), into),
            gated ? std::optional(Linear::read(own.select("wi_1"), into)) : std::nullopt,
            Linear(own.take("wo.weight", {hidden, inner}).to(wide_)),
            wide_,
            find_activation(config_.hidden_act)};
  }

  const ModelConfig& config_;
  at::ScalarType wide_;
};

class T5Model final : public Seq2SeqLM {
 public:
  T5Model(const ModelConfig& model_config, const StateDict& weights, const LoadOptions& options)
      : Seq2SeqLM(model_config, options.dtype.value(), options.device),
        embedding_(
            weights.take("shared.weight", {model_config.vocab_size, model_config.hidden_size})),
        wide_(wide(dtype())) {
    const BlockReader reader(config(), dtype());
    encoder_ = reader.stack(weights.select("encoder"), config().seq2seq->encoder_layers, false);
    decoder_ = reader.stack(weights.select("decoder"), config().num_hidden_layers, true);
    // As Transformers does: the head is the embeddings' own unless the file says otherwise.
    head_ = Linear(weights.contains("lm_head.weight")
                       ? weights.take("lm_head.weight", {config().vocab_size, config().hidden_size})
                       : embedding_);
    weights.ignore_unused("*coder.embed_tokens.weight");
    weights.ignore_unused("*.EncDecAttention.relative_attention_bias.weight");
    weights.verify();
  }

 protected:
  at::Tensor encode(const at::Tensor& ids, const std::optional<at::Tensor>& real) const override {
    const std::int64_t rows = ids.size(0), tokens = ids.size(1);
    const at::Tensor positions = at::arange(tokens, at::kLong).unsqueeze(0);
    at::Tensor bias = encoder_.bias(positions, positions);
    AttentionMask mask;
    if (real) {
      mask = {AttentionMask::Kind::dense,
              real->unsqueeze(1).unsqueeze(1).expand({rows, 1, tokens, tokens})};
    }
    at::Tensor hidden = embed(ids);
    for (const Block& block : encoder_.blocks) {
      const Attention& self = block.self;
      hidden = hidden.to(self.query.device());
      bias = bias.to(hidden.device());
      if (real) mask.allowed = mask.allowed.to(hidden.device());
      const at::Tensor normed = self.norm(hidden).to(dtype());
      const auto [keys, values] = self.keys_of(normed, rows);
      const View view{.segments = {{keys, values}}, .visible = {.length = tokens}, .batch = rows};
      hidden = hidden.add_(self.join(attention(self.heads(self.query(normed), rows), view, mask,
                                               {.scale = Attention::kScale, .bias = bias})));
      hidden = hidden.add_(block.mlp(block.mlp.norm(hidden).to(dtype())));
    }
    return finish(encoder_, hidden, rows);
  }

  at::Tensor decode(const at::Tensor& ids, ForwardContext& context,
                    CrossContext& cross) const override {
    const std::int64_t rows = ids.size(0);
    const at::Tensor keys = context.key_positions(0);
    const at::Tensor queries = context.positions().narrow(0, 0, keys.size(0)).to(at::kCPU);
    at::Tensor bias = decoder_.bias(queries, keys);
    at::Tensor hidden = embed(ids);
    for (std::size_t i = 0; i < decoder_.blocks.size(); ++i) {
      const Block& block = decoder_.blocks[i];
      const auto layer = static_cast<std::int64_t>(i);
      hidden = hidden.to(block.self.query.device());
      bias = bias.to(hidden.device());
      const Attention& self = block.self;
      at::Tensor normed = self.norm(hidden).to(dtype());
      hidden = hidden.add_(self.join(context.attend(layer, self.heads(self.query(normed), rows),
                                                    self.keys_of(normed, rows),
                                                    {.scale = Attention::kScale, .bias = bias})));
      const Attention& other = *block.cross;
      normed = other.norm(hidden).to(dtype());
      hidden = hidden.add_(other.join(cross.attend(
          layer, other.heads(other.query(normed), rows),
          [&](const at::Tensor& encoded) {
            return other.keys_of(encoded.flatten(0, 1).to(other.key.device()), encoded.size(0));
          },
          {.scale = Attention::kScale})));
      hidden = hidden.add_(block.mlp(block.mlp.norm(hidden).to(dtype())));
    }
    return finish(decoder_, hidden, rows);
  }

  at::Tensor head(const at::Tensor& hidden) const override {
    at::Tensor rows = hidden.flatten(0, 1).to(head_.device());
    if (config().seq2seq->scale_outputs) {
      rows = rows.mul(1 / std::sqrt(static_cast<double>(config().hidden_size)));
    }
    return head_(rows).view({hidden.size(0), hidden.size(1), -1});
  }

 private:
  // Two dimensions throughout: [rows * tokens, hidden_size].
  at::Tensor embed(const at::Tensor& ids) const {
    return embedding_.index_select(0, ids.flatten().to(embedding_.device())).to(wide_);
  }

  at::Tensor finish(const Stack& stack, const at::Tensor& hidden, std::int64_t rows) const {
    const at::Tensor last = stack.norm(hidden.to(stack.norm.device())).to(dtype());
    return last.view({rows, hidden.size(0) / rows, -1});
  }

  at::Tensor embedding_;  // [vocab_size, hidden_size]
  at::ScalarType wide_;   // of the sums between blocks
  Stack encoder_, decoder_;
  Linear head_;
};

std::unique_ptr<Seq2SeqLM> build(const ModelConfig& config, const StateDict& weights,
                                 const LoadOptions& options) {
  return std::make_unique<T5Model>(config, weights, options);
}

}  // namespace

void add_t5(ModelRegistry& registry) {
  registry.add("t5", {.read_config = read_config, .build_seq2seq = build});
}

}  // namespace kvcache::detail
