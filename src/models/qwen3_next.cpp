#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/causal_convolution.h"
#include "kvcache/models/experts.h"
#include "kvcache/models/mixed_decoder.h"
#include "kvcache/models/recurrence.h"
#include "models/families.h"
#include "models/recurrent_config.h"

namespace kvcache::detail {
namespace {

constexpr std::int64_t kMaxExperts = 65'536;

void read_experts_config(const ConfigReader& json, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.count =
      json.integer("num_experts") == 0 ? 0 : json.size("num_experts", kMaxExperts).value_or(512);
  experts.layers.assign(static_cast<std::size_t>(config.num_hidden_layers), false);
  if (experts.count == 0) return;
  experts.per_token = json.size("num_experts_per_tok", experts.count).value_or(10);
  experts.intermediate_size = json.size("moe_intermediate_size").value_or(512);
  experts.shared_size = json.size("shared_expert_intermediate_size").value_or(512);
  experts.normalize = json.flag("norm_topk_prob").value_or(true);
  const std::int64_t step = json.size("decoder_sparse_step").value_or(1);
  const auto plain = json.integers("mlp_only_layers").value_or(std::vector<std::int64_t>{});
  for (std::int64_t i = step - 1; i < config.num_hidden_layers; i += step) {
    experts.layers[static_cast<std::size_t>(i)] =
        std::find(plain.begin(), plain.end(), i) == plain.end();
  }
}

std::vector<std::string> read_types(const ConfigReader& json, std::int64_t layers) {
  std::vector<std::string> types;
  const std::int64_t every = json.size("full_attention_interval").value_or(4);
  for (std::int64_t i = 1; i <= layers; ++i) {
    types.emplace_back(i % every == 0 ? kFullAttention : kLinearAttention);
  }
  types = json.texts("layer_types").value_or(std::move(types));
  check_value(static_cast<std::int64_t>(types.size()) == layers, json.field("layer_types"), " has ",
              types.size(), " entries, but num_hidden_layers is ", layers);
  for (const std::string& type : types) {
    check_value(type == kFullAttention || type == kLinearAttention, json.field("layer_types"),
                " has '", type, "'; known for this family are ", kFullAttention, ", ",
                kLinearAttention);
  }
  return types;
}

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_decoder_config(json,
                                           {.vocab_size = 151936,
                                            .hidden_size = 2048,
                                            .intermediate_size = 5632,
                                            .num_hidden_layers = 48,
                                            .num_attention_heads = 16,
                                            .num_key_value_heads = 2,
                                            .head_dim = 256,
                                            .max_position_embeddings = 32768,
                                            .rope = {.partial_rotary_factor = 0.25}},
                                           {.partial = true});
  config.attention_bias = json.flag("attention_bias").value_or(false);
  RecurrentConfig& sizes = config.recurrent;
  sizes.conv_kernel = read_kernel_size(json, "linear_conv_kernel_dim", 4);
  sizes.key_dim = json.size("linear_key_head_dim", kMaxStateSize).value_or(128);
  sizes.value_dim = json.size("linear_value_head_dim", kMaxStateSize).value_or(128);
  sizes.key_heads = json.size("linear_num_key_heads", kMaxStateHeads).value_or(16);
  sizes.heads = json.size("linear_num_value_heads", kMaxStateHeads).value_or(32);
  sizes.inner_size = sizes.heads * sizes.value_dim;
  check_value(sizes.heads % sizes.key_heads == 0, json.field("linear_num_value_heads"), " is ",
              sizes.heads, "; it must be a multiple of linear_num_key_heads, ", sizes.key_heads);
  sizes.states = matrix_states(sizes);
  read_experts_config(json, config);
  config.layer_types = read_types(json, config.num_hidden_layers);
  return config;
}

// x over the length of its last dimension, the square of which gets 1e-6 more. float32.
at::Tensor unit_length(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat);
  return wide.mul(wide.square().sum(-1, /*keepdim=*/true).add_(1e-6).rsqrt_());
}

// A convolution and the gated delta rule (https://arxiv.org/abs/2412.06464).
struct GatedDeltaNet {
  RecurrentConfig sizes;
  Linear in;     // hidden -> by key head: query, key, its values, their gates
  Linear rates;  // hidden -> by key head: learning rates, then decays, of its values
  CausalConvolution convolution;  // of queries, keys, values
  Activation activation;
  at::Tensor decay_bias;  // [heads]
  at::Tensor decay;       // [heads]; see prepare()
  RmsNorm norm;           // over each head
  Linear out;

  static GatedDeltaNet read(const StateDict& weights, const ModelConfig& config);

  // Once sizes are confirmed: decay_bias and decay float32, decay below 0.
  void prepare() {
    decay_bias = decay_bias.to(at::kFloat);
    decay = decay.to(at::kFloat).exp().neg_();
  }

  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const;

 private:
  // mixed [batch, tokens, 2 * key_heads * key_dim + heads * value_dim]; shares [batch, tokens,
  // key_heads, 2 * heads a key head] -> float32 [batch, heads, tokens, value_dim].
  at::Tensor scan(const at::Tensor& mixed, const at::Tensor& shares,
                  const LayerContext& context) const;
};

GatedDeltaNet GatedDeltaNet::read(const StateDict& weights, const ModelConfig& config) {
  const RecurrentConfig& sizes = config.recurrent;
  const std::int64_t hidden = config.hidden_size, heads = sizes.heads;
  const std::int64_t keys = sizes.key_heads * sizes.key_dim, values = heads * sizes.value_dim;
  return {.sizes = sizes,
          .in = Linear::read(weights.select("in_proj_qkvz"), {2 * keys + 2 * values, hidden}),
          .rates = Linear::read(weights.select("in_proj_ba"), {2 * heads, hidden}),
          .convolution = CausalConvolution::read(weights.select("conv1d"),
                                                 {2 * keys + values, sizes.conv_kernel}),
          .activation = find_activation(config.hidden_act),
          .decay_bias = weights.take("dt_bias", {heads}),
          .decay = weights.take("A_log", {heads}),
          .norm = RmsNorm(weights.take("norm.weight", {sizes.value_dim}), config.rms_norm_eps),
          .out = Linear::read(weights.select("out_proj"), {hidden, values})};
}

at::Tensor GatedDeltaNet::scan(const at::Tensor& mixed, const at::Tensor& shares,
                               const LayerContext& context) const {
  const std::int64_t keys = sizes.key_heads * sizes.key_dim, shared = shares.size(3) / 2;
  // [batch, heads, tokens, dim]
  const auto heads = [&](std::int64_t first, std::int64_t width, std::int64_t count) {
    return mixed.narrow(2, first, width).unflatten(2, {count, -1}).transpose(1, 2);
  };
  const auto of_heads = [&](std::int64_t first) {  // [batch, tokens, heads]
    return shares.narrow(3, first, shared).flatten(2);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.key_dim));
  const at::Tensor log_decay =
      at::softplus(of_heads(shared).to(at::kFloat).add(decay_bias)).mul_(decay);
  const ScanResult result =
      linear_attention({.queries = unit_length(heads(0, keys, sizes.key_heads)).mul_(scale),
                        .keys = unit_length(heads(keys, keys, sizes.key_heads)),
                        .values = heads(2 * keys, sizes.inner_size, sizes.heads),
                        .log_decay = log_decay.transpose(1, 2),
                        .learning_rates = at::sigmoid(of_heads(0)).transpose(1, 2),
                        .state = context.step.recurrent_state(context.layer),
                        .wanted = context.step.wanted_states(context.layer)});
  context.step.update_recurrent_state(context.layer, result.states);
  return result.output;
}

at::Tensor GatedDeltaNet::operator()(const at::Tensor& hidden, const LayerContext& context) const {
  const std::int64_t batch = context.batch(), tokens = context.tokens();
  const std::int64_t key_dim = sizes.key_dim;
  const std::int64_t values = sizes.inner_size / sizes.key_heads;  // of one key head
  const at::Tensor all = in(hidden).view({batch, tokens, sizes.key_heads, -1});
  const auto part = [&](std::int64_t first, std::int64_t width) {
    return all.narrow(3, first, width).flatten(2);  // [batch, tokens, heads * width]
  };
  const at::Tensor mixed = activation(convolution(
      at::cat({part(0, key_dim), part(key_dim, key_dim), part(2 * key_dim, values)}, 2), context));
  const at::Tensor scanned = scan(without_padding(mixed, context),
                                  rates(hidden).view({batch, tokens, sizes.key_heads, -1}), context)
                                 .to(hidden.scalar_type())
                                 .transpose(1, 2);  // [batch, tokens, heads, value_dim]
  const at::Tensor gate =
      at::silu(part(2 * key_dim + values, values).view(scanned.sizes()).to(at::kFloat));
  const at::Tensor gated = norm(scanned).to(at::kFloat).mul_(gate).to(hidden.scalar_type());
  return out(gated.reshape({batch * tokens, sizes.inner_size}));
}

// Attention whose output each query head gates by itself.
struct GatedAttention {
  AttentionBlock attention;  // its query projection gives, by head, a query and a gate

  static GatedAttention read(const StateDict& weights, const ModelConfig& config);
  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const;
};

GatedAttention GatedAttention::read(const StateDict& weights, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, dim = config.head_dim;
  const std::int64_t queries = config.num_attention_heads * dim;
  const std::int64_t keys = config.num_key_value_heads * dim;
  const bool bias = config.attention_bias;
  const auto norm = [&](const char* name) {
    return RmsNorm::zero_centered(weights.take(name, {dim}), config.rms_norm_eps);
  };
  return {{.query = Linear::read(weights.select("q_proj"), {2 * queries, hidden, bias}),
           .key = Linear::read(weights.select("k_proj"), {keys, hidden, bias}),
           .value = Linear::read(weights.select("v_proj"), {keys, hidden, bias}),
           .output = Linear::read(weights.select("o_proj"), {hidden, queries, bias}),
           .query_norm = norm("q_norm.weight"),
           .key_norm = norm("k_norm.weight"),
           .head_dim = dim}};
}

at::Tensor GatedAttention::operator()(const at::Tensor& hidden, const LayerContext& context) const {
  const auto heads = [&](const Linear& linear, std::int64_t width) {
    return linear(hidden).view({context.batch(), context.tokens(), -1, width});
  };
  const std::int64_t dim = attention.head_dim;
  const std::vector<at::Tensor> both = heads(attention.query, 2 * dim).split(dim, -1);
  const at::Tensor queries = rotate((*attention.query_norm)(both[0]), context.rotation);
  const at::Tensor keys =
      rotate((*attention.key_norm)(heads(attention.key, dim)), context.rotation);
  const at::Tensor values = heads(attention.value, dim);
  const at::Tensor attended = context.step.attend(context.layer, queries.transpose(1, 2),
                                                  {keys.transpose(1, 2), values.transpose(1, 2)});
  const at::Tensor gated = attended.transpose(1, 2).mul(at::sigmoid(both[1]));
  return attention.output(gated.reshape({hidden.size(0), -1}));
}

ExpertsBlock read_experts_block(const StateDict& weights, const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  const std::int64_t hidden = config.hidden_size;
  const Activation activation = find_activation(config.hidden_act);
  return {.router = {.scores = Linear::read(weights.select("gate"), {experts.count, hidden}),
                     .top_k = experts.per_token,
                     .normalize = experts.normalize},
          .experts = read_experts(
              weights.select("experts"),
              {.experts = experts.count, .hidden = hidden, .inner = experts.intermediate_size},
              activation),
          .shared = SharedExpert{
              GatedMlp::read(weights.select("shared_expert"),
                             {.hidden = hidden, .inner = experts.shared_size}, activation),
              Linear::read(weights.select("shared_expert_gate"), {1, hidden})}};
}

std::unique_ptr<CausalLM> build(const ModelConfig& config, const StateDict& weights,
                                const LoadOptions& options) {
  MixedParts parts{.vocabulary = Vocabulary::read(weights, config)};
  const auto norm = [&](const StateDict& from, const char* name) {
    return RmsNorm::zero_centered(from.take(name, {config.hidden_size}), config.rms_norm_eps);
  };
  std::vector<std::pair<std::size_t, GatedDeltaNet>> delta_nets;  // by layer
  for (std::size_t i = 0; i < config.layer_types.size(); ++i) {
    const StateDict layer = weights.select("model.layers." + std::to_string(i));
    MixedLayer made{.norm = norm(layer, "input_layernorm.weight"),
                    .mlp_norm = norm(layer, "post_attention_layernorm.weight")};
    if (config.layer_types[i] == kFullAttention) {
      made.mixer = GatedAttention::read(layer.select("self_attn"), config);
    } else {
      delta_nets.emplace_back(i, GatedDeltaNet::read(layer.select("linear_attn"), config));
    }
    const StateDict mlp = layer.select("mlp");
    if (config.experts.layers[i]) {
      made.mlp = read_experts_block(mlp, config);
    } else {
      made.mlp =
          GatedMlp::read(mlp, {.hidden = config.hidden_size, .inner = config.intermediate_size},
                         find_activation(config.hidden_act));
    }
    parts.layers.push_back(std::move(made));
  }
  parts.norm = norm(weights, "model.norm.weight");
  weights.verify();
  for (auto& [layer, net] : delta_nets) {
    net.prepare();
    parts.layers[layer].mixer = std::move(net);
  }
  parts.rope = Rope(config.rope, config.head_dim, options.device);
  return std::make_unique<MixedDecoder>(config, options, std::move(parts));
}

}  // namespace

void add_qwen3_next(ModelRegistry& registry) { registry.add("qwen3_next", {read_config, build}); }

}  // namespace kvcache::detail
