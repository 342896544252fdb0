// Recurrences over the tokens of a step as pure functions: inputs and previous state in, outputs
// and states out. All compute in float32, whatever the dtype of their inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace kvcache {

struct ScanResult {
  at::Tensor output;  // float32, a row a token
  // float32 [wanted, batch, ...]: the states after each of the last `wanted` tokens.
  at::Tensor states;
};

// One step of a selective state space (https://arxiv.org/abs/2312.00752, section 3.2).
struct SelectiveScanInput {
  at::Tensor x;                          // [batch, tokens, channels]
  at::Tensor time_steps;                 // [batch, tokens, channels], above 0
  at::Tensor rates;                      // [channels, size], below 0: what a state loses a time
  at::Tensor input_weights;              // [batch, tokens, size]
  at::Tensor output_weights;             // [batch, tokens, size]
  std::optional<at::Tensor> state = {};  // [batch, channels, size]; absent: zeros
  std::int64_t wanted = 1;               // states to return, from 1 to tokens
};

// state = exp(time_step * rate) * state + time_step * input_weight * x
// output [batch, tokens, channels] = sum over size of output_weight * state
// Every element of the state fades at a pace of its own, so there is no matrix form; the states of
// a token are one fused operation. Throws ValueError for shapes that do not fit.
ScanResult selective_scan(const SelectiveScanInput& input);

// One step of linear attention: each head's state is a matrix that maps keys to values.
struct LinearAttentionInput {
  at::Tensor queries;                             // [batch, key_heads, tokens, key_dim]
  at::Tensor keys;                                // [batch, key_heads, tokens, key_dim]
  at::Tensor values;                              // [batch, heads, tokens, value_dim]
  at::Tensor log_decay;                           // [batch, heads, tokens], at most 0
  std::optional<at::Tensor> learning_rates = {};  // [batch, heads, tokens]: the delta rule's
  std::optional<at::Tensor> state = {};  // [batch, heads, value_dim, key_dim]; absent: zeros
  std::int64_t wanted = 1;               // states to return, from 1 to tokens
};

// state = exp(log_decay) * state + value key^T
// output [batch, heads, tokens, value_dim] = state query
// Of `heads` values, each heads / key_heads neighbours share a query and a key. With learning
// rates, what the state already answers to the key is taken off the value first:
// value = learning_rate * (value - exp(log_decay) * state key).
// Computed as matrix products over chunks of tokens: state space duality
// (https://arxiv.org/abs/2405.21060, section 6), and for the gated delta rule
// https://arxiv.org/abs/2412.06464, section 3.3. Throws ValueError for shapes that do not fit.
ScanResult linear_attention(const LinearAttentionInput& input);

}  // namespace kvcache
