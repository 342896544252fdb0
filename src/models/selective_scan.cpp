#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/recurrence.h"

namespace kvcache {
namespace {

// Numbers of state that a chunk of tokens may take: chunks stay in the processor's cache.
constexpr std::int64_t kChunkNumbers = std::int64_t{1} << 19;

void check(const SelectiveScanInput& input) {
  check_value(input.x.dim() == 3 && input.rates.dim() == 2, "a selective scan takes x [batch, ",
              "tokens, channels] and rates [channels, size], but got ", input.x.sizes(), " and ",
              input.rates.sizes());
  const std::int64_t batch = input.x.size(0), tokens = input.x.size(1), channels = input.x.size(2);
  const std::int64_t size = input.rates.size(1);
  check_value(input.time_steps.sizes() == input.x.sizes() && input.rates.size(0) == channels,
              "time steps ", input.time_steps.sizes(), " and rates ", input.rates.sizes(),
              " do not fit x ", input.x.sizes());
  const std::vector<std::int64_t> weights{batch, tokens, size};
  check_value(input.input_weights.sizes() == weights && input.output_weights.sizes() == weights,
              "input and output weights must be ", weights, ", but are ",
              input.input_weights.sizes(), " and ", input.output_weights.sizes());
  const std::vector<std::int64_t> state{batch, channels, size};
  check_value(!input.state || input.state->sizes() == state, "the state must be ", state,
              ", but is ", input.state ? input.state->sizes() : at::IntArrayRef());
  check_value(input.wanted >= 1 && input.wanted <= tokens, "wanted states: ", input.wanted,
              "; there can be 1 to ", tokens, ", one a token");
}

}  // namespace

ScanResult selective_scan(const SelectiveScanInput& input) {
  check(input);
  // Tokens first, so that a token's states are one block.
  const auto token_first = [](const at::Tensor& x) { return x.to(at::kFloat).transpose(0, 1); };
  const at::Tensor time_steps = token_first(input.time_steps);
  const at::Tensor inputs = time_steps.mul(token_first(input.x)).unsqueeze(-1);
  const at::Tensor input_weights = token_first(input.input_weights).unsqueeze(2);
  const at::Tensor output_weights = token_first(input.output_weights).unsqueeze(-1);
  const at::Tensor rates = input.rates.to(at::kFloat);

  const std::int64_t tokens = inputs.size(0), batch = inputs.size(1), channels = inputs.size(2);
  const std::int64_t numbers = batch * channels * rates.size(1);
  const std::int64_t chunk = std::clamp<std::int64_t>(kChunkNumbers / numbers, 1, tokens);
  at::Tensor state = input.state ? input.state->to(at::kFloat)
                                 : at::zeros({batch, channels, rates.size(1)}, rates.options());
  std::vector<at::Tensor> outputs, wanted;
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    const at::Tensor decay = time_steps.narrow(0, first, count).unsqueeze(-1).mul(rates).exp_();
    const at::Tensor states =
        inputs.narrow(0, first, count).mul(input_weights.narrow(0, first, count));
    const std::vector<at::Tensor> decay_of = decay.unbind(0), state_after = states.unbind(0);
    for (std::size_t i = 0; i < state_after.size(); ++i) {
      at::Tensor(state_after[i]).addcmul_(decay_of[i], state);
      state = state_after[i];
    }
    outputs.push_back(at::matmul(states, output_weights.narrow(0, first, count)).squeeze(-1));
    const std::int64_t from = std::max(first, tokens - input.wanted) - first;
    if (from < count) wanted.push_back(states.narrow(0, from, count - from));
  }
  return {at::cat(outputs, 0).transpose(0, 1), at::cat(wanted, 0)};
}

}  // namespace kvcache
