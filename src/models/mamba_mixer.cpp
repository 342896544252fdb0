#include "kvcache/models/mamba_mixer.h"

#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include "kvcache/models/recurrence.h"

namespace kvcache {

MambaMixer MambaMixer::read(const StateDict& weights, const ModelConfig& config, bool norms) {
  const RecurrentConfig& sizes = config.recurrent;
  const std::int64_t hidden = config.hidden_size, inner = sizes.inner_size;
  const std::int64_t rank = sizes.time_step_rank, size = sizes.state_size;
  const auto norm = [&](const char* name, std::int64_t width) -> std::optional<RmsNorm> {
    if (!norms) return std::nullopt;
    return RmsNorm(weights.take(name, {width}), config.rms_norm_eps);
  };
  return {.in = Linear::read(weights.select("in_proj"), {2 * inner, hidden, sizes.projection_bias}),
          .convolution = CausalConvolution::read(weights.select("conv1d"),
                                                 {inner, sizes.conv_kernel, sizes.conv_bias}),
          .activation = find_activation(config.hidden_act),
          .selection = Linear::read(weights.select("x_proj"), {rank + 2 * size, inner}),
          .time_norm = norm("dt_layernorm.weight", rank),
          .input_norm = norm("b_layernorm.weight", size),
          .output_norm = norm("c_layernorm.weight", size),
          .time = Linear::read(weights.select("dt_proj"), {inner, rank}),
          .time_bias = weights.take("dt_proj.bias", {inner}),
          .rates = weights.take("A_log", {inner, size}),
          .skip = weights.take("D", {inner}),
          .out = Linear::read(weights.select("out_proj"), {hidden, inner, sizes.projection_bias})};
}

void MambaMixer::prepare() {
  time_bias = time_bias.to(at::kFloat);
  rates = rates.to(at::kFloat).exp().neg_();
  skip = skip.to(at::kFloat);
}

at::Tensor MambaMixer::operator()(const at::Tensor& hidden, const LayerContext& context) const {
  const std::int64_t batch = context.batch(), tokens = context.tokens();
  const std::int64_t inner = rates.size(0), size = rates.size(1);
  const auto rows = [&](const at::Tensor& x) { return x.unflatten(0, {batch, tokens}); };
  const auto normed = [](const std::optional<RmsNorm>& norm, const at::Tensor& x) {
    return norm ? (*norm)(x) : x;
  };
  const at::Tensor both = in(hidden);
  const at::Tensor gate = both.narrow(1, inner, inner);
  const at::Tensor x =
      without_padding(activation(convolution(rows(both.narrow(1, 0, inner)), context)), context);

  const at::Tensor selected = selection(x.reshape({batch * tokens, inner}));
  const std::int64_t rank = selected.size(1) - 2 * size;
  const at::Tensor time_steps = at::softplus(
      time(normed(time_norm, selected.narrow(1, 0, rank))).to(at::kFloat).add(time_bias));
  const ScanResult scan = selective_scan(
      {.x = x,
       .time_steps = rows(time_steps),
       .rates = rates,
       .input_weights = rows(normed(input_norm, selected.narrow(1, rank, size))),
       .output_weights = rows(normed(output_norm, selected.narrow(1, rank + size, size))),
       .state = context.step.recurrent_state(context.layer),
       .wanted = context.step.wanted_states(context.layer)});
  context.step.update_recurrent_state(context.layer, scan.states);
  const at::Tensor output =
      scan.output.addcmul(x, skip).reshape({batch * tokens, inner}).mul_(at::silu(gate));
  return out(output.to(hidden.scalar_type()));
}

}  // namespace kvcache
