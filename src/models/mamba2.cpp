#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/causal_convolution.h"
#include "kvcache/models/mixed_decoder.h"
#include "kvcache/models/recurrence.h"
#include "models/families.h"
#include "models/mamba_stack.h"
#include "models/recurrent_config.h"

namespace kvcache::detail {
namespace {

void read_time_step_limit(const ConfigReader& json, RecurrentConfig& sizes) {
  const auto limit = json.numbers_to_infinity("time_step_limit");
  if (!limit) return;
  check_value(limit->size() == 2 && (*limit)[0] >= 0 && (*limit)[0] <= (*limit)[1],
              json.field("time_step_limit"), " must be two numbers, the least and the largest");
  sizes.least_time_step = (*limit)[0];
  sizes.largest_time_step = (*limit)[1];
}

ModelConfig read_config(const ConfigReader& json) {
  ModelConfig config = read_base_config(json, {.vocab_size = 32768,
                                               .hidden_size = 4096,
                                               .num_hidden_layers = 64,
                                               .bos_token_id = 0,
                                               .pad_token_id = 1,
                                               .eos_token_ids = {2}});
  config.rms_norm_eps = read_norm_eps(json, "layer_norm_epsilon", 1e-5);
  RecurrentConfig& sizes = config.recurrent;
  sizes.conv_kernel = read_kernel_size(json, "conv_kernel", 4);
  sizes.conv_bias = json.flag("use_conv_bias").value_or(true);
  sizes.projection_bias = json.flag("use_bias").value_or(false);
  sizes.wide_residual = json.flag("residual_in_fp32").value_or(true);
  sizes.inner_size = read_inner_size(json, "expand", config.hidden_size);
  sizes.heads = json.size("num_heads", kMaxStateHeads).value_or(128);
  sizes.value_dim = json.size("head_dim", kMaxStateSize).value_or(64);
  sizes.key_heads = json.size("n_groups", kMaxStateHeads).value_or(8);
  sizes.key_dim = json.size("state_size", kMaxStateSize).value_or(128);
  check_value(sizes.heads * sizes.value_dim == sizes.inner_size, json.field("num_heads"), " is ",
              sizes.heads, " of size ", sizes.value_dim, "; together they must be expand * ",
              "hidden_size, ", sizes.inner_size);
  check_value(sizes.heads % sizes.key_heads == 0, json.field("n_groups"), " is ", sizes.key_heads,
              "; num_heads, ", sizes.heads, ", must be a multiple of it");
  read_time_step_limit(json, sizes);
  sizes.states = matrix_states(sizes);
  config.layer_types.assign(static_cast<std::size_t>(config.num_hidden_layers),
                            std::string(kLinearAttention));
  return config;
}

// A gated convolution and state space duality (https://arxiv.org/abs/2405.21060, section 7).
struct Mamba2Mixer {
  RecurrentConfig sizes;
  Linear in;  // hidden -> gates, inputs, keys, queries, time steps
  CausalConvolution convolution;
  Activation activation;
  at::Tensor time_bias;  // [heads]
  at::Tensor rates;      // [heads]; see prepare()
  at::Tensor skip;       // [heads]
  RmsNorm norm;          // over each of key_heads groups of channels
  Linear out;

  static Mamba2Mixer read(const StateDict& weights, const ModelConfig& config);

  // Once sizes are confirmed: all of time_bias, rates, skip float32, rates below 0.
  void prepare();

  at::Tensor operator()(const at::Tensor& hidden, const LayerContext& context) const;

 private:
  // mixed [batch, tokens, inner + 2 * key_heads * key_dim], time_steps float32 [batch, tokens,
  // heads] -> float32 [batch * tokens, inner].
  at::Tensor scan(const at::Tensor& mixed, const at::Tensor& time_steps,
                  const LayerContext& context) const;
};

Mamba2Mixer Mamba2Mixer::read(const StateDict& weights, const ModelConfig& config) {
  const RecurrentConfig& sizes = config.recurrent;
  const std::int64_t hidden = config.hidden_size, inner = sizes.inner_size, heads = sizes.heads;
  const std::int64_t mixed = inner + 2 * sizes.key_heads * sizes.key_dim;
  // The weight lies in groups, so that the norm is over each of them.
  const at::Tensor norm =
      weights.take("norm.weight", {inner}).view({sizes.key_heads, inner / sizes.key_heads});
  return {.sizes = sizes,
          .in = Linear::read(weights.select("in_proj"),
                             {inner + mixed + heads, hidden, sizes.projection_bias}),
          .convolution = CausalConvolution::read(weights.select("conv1d"),
                                                 {mixed, sizes.conv_kernel, sizes.conv_bias}),
          .activation = find_activation(config.hidden_act),
          .time_bias = weights.take("dt_bias", {heads}),
          .rates = weights.take("A_log", {heads}),
          .skip = weights.take("D", {heads}),
          .norm = RmsNorm(norm, config.rms_norm_eps),
          .out = Linear::read(weights.select("out_proj"), {hidden, inner, sizes.projection_bias})};
}

void Mamba2Mixer::prepare() {
  time_bias = time_bias.to(at::kFloat);
  rates = rates.to(at::kFloat).exp().neg_();
  skip = skip.to(at::kFloat);
}

at::Tensor Mamba2Mixer::scan(const at::Tensor& mixed, const at::Tensor& time_steps,
                             const LayerContext& context) const {
  const std::int64_t inner = sizes.inner_size, keys = sizes.key_heads * sizes.key_dim;
  // [batch, heads, tokens, dim]
  const auto heads = [&](std::int64_t first, std::int64_t width, std::int64_t count) {
    return mixed.narrow(2, first, width).unflatten(2, {count, -1}).transpose(1, 2);
  };
  const at::Tensor values = heads(0, inner, sizes.heads);
  const at::Tensor steps = time_steps.transpose(1, 2);
  const ScanResult result = linear_attention({.queries = heads(inner + keys, keys, sizes.key_heads),
                                              .keys = heads(inner, keys, sizes.key_heads),
                                              .values = values.mul(steps.unsqueeze(-1)),
                                              .log_decay = steps.mul(rates.unsqueeze(-1)),
                                              .state = context.step.recurrent_state(context.layer),
                                              .wanted = context.step.wanted_states(context.layer)});
  context.step.update_recurrent_state(context.layer, result.states);
  return result.output.addcmul(values, skip.view({-1, 1, 1})).transpose(1, 2).reshape({-1, inner});
}

at::Tensor Mamba2Mixer::operator()(const at::Tensor& hidden, const LayerContext& context) const {
  const std::int64_t inner = sizes.inner_size;
  const at::Tensor all = in(hidden);
  const std::int64_t mixed_size = all.size(1) - inner - sizes.heads;
  const auto rows = [&](std::int64_t first, std::int64_t width) {
    return all.narrow(1, first, width).unflatten(0, {context.batch(), context.tokens()});
  };
  const at::Tensor mixed =
      without_padding(activation(convolution(rows(inner, mixed_size), context)), context);
  const at::Tensor time_steps =
      at::softplus(rows(inner + mixed_size, sizes.heads).to(at::kFloat).add(time_bias))
          .clamp_(sizes.least_time_step, sizes.largest_time_step);
  const at::Tensor gated =
      scan(mixed, time_steps, context).mul_(at::silu(all.narrow(1, 0, inner).to(at::kFloat)));
  return out(norm(gated.view({-1, sizes.key_heads, inner / sizes.key_heads}))
                 .flatten(1)
                 .to(hidden.scalar_type()));
}

}  // namespace

void add_mamba2(ModelRegistry& registry) {
  registry.add("mamba2", {read_config, build_mamba<Mamba2Mixer>});
}

}  // namespace kvcache::detail
