#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/models/recurrence.h"

namespace kvcache {
namespace {

constexpr std::int64_t kChunk = 64;  // tokens

void check(const LinearAttentionInput& input) {
  const at::Tensor &keys = input.keys, &values = input.values;
  check_value(keys.dim() == 4 && values.dim() == 4 && keys.size(0) == values.size(0) &&
                  keys.size(2) == values.size(2) && values.size(1) % keys.size(1) == 0,
              "linear attention takes keys [batch, key_heads, tokens, key_dim] and values [batch, "
              "heads, tokens, value_dim], heads a multiple of key_heads, but got ",
              keys.sizes(), " and ", values.sizes());
  check_value(input.queries.sizes() == keys.sizes(), "queries ", input.queries.sizes(),
              " must have the shape of the keys, ", keys.sizes());
  const at::IntArrayRef heads = values.sizes().slice(0, 3);
  check_value(input.log_decay.sizes() == heads &&
                  (!input.learning_rates || input.learning_rates->sizes() == heads),
              "decays and learning rates must be ", heads, ", but the decays are ",
              input.log_decay.sizes());
  const std::vector<std::int64_t> state{values.size(0), values.size(1), values.size(3),
                                        keys.size(3)};
  check_value(!input.state || input.state->sizes() == state, "the state must be ", state,
              ", but is ", input.state ? input.state->sizes() : at::IntArrayRef());
  check_value(input.wanted >= 1 && input.wanted <= keys.size(2), "wanted states: ", input.wanted,
              "; there can be 1 to ", keys.size(2), ", one a token");
}

// Consecutive tokens. Heads are two dimensions, [key_heads, values a key head]; those of queries
// and keys are [key_heads, 1].
struct Tokens {
  at::Tensor queries;                        // [batch, key_heads, 1, tokens, key_dim]
  at::Tensor keys;                           // the same
  at::Tensor values;                         // [batch, key_heads, shared, tokens, value_dim]
  at::Tensor log_decay;                      // [batch, key_heads, shared, tokens, 1]
  std::optional<at::Tensor> learning_rates;  // the same

  Tokens narrow(std::int64_t first, std::int64_t count) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(3, first, count); };
    Tokens result{part(queries), part(keys), part(values), part(log_decay), std::nullopt};
    if (learning_rates) result.learning_rates = part(*learning_rates);
    return result;
  }
};

Tokens prepare(const LinearAttentionInput& input) {
  const std::int64_t key_heads = input.keys.size(1);
  const auto split = [&](const at::Tensor& x) {
    return x.to(at::kFloat).unflatten(1, {key_heads, -1});
  };
  Tokens tokens{split(input.queries), split(input.keys), split(input.values),
                split(input.log_decay).unsqueeze(-1), std::nullopt};
  if (input.learning_rates) tokens.learning_rates = split(*input.learning_rates).unsqueeze(-1);
  return tokens;
}

// What is left of each earlier token after each later one, [..., later, earlier]: the exponential
// of the sum of the decays between them. Each sum is taken by itself: differences of running sums
// would lose digits.
at::Tensor pairwise_decay(const at::Tensor& log_decay) {
  const std::int64_t tokens = log_decay.size(-2);
  const at::Tensor seen = at::ones({tokens, tokens}, log_decay.options().dtype(at::kBool)).tril();
  return log_decay.expand({-1, -1, -1, tokens, tokens})
      .tril(-1)
      .cumsum(-2)
      .masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity())
      .exp_();
}

struct ChunkDecay {
  at::Tensor pairs;       // [batch, key_heads, shared, tokens, tokens]
  at::Tensor from_start;  // [batch, key_heads, shared, tokens, 1]: what is left of the old state

  explicit ChunkDecay(const at::Tensor& log_decay)
      : pairs(pairwise_decay(log_decay)), from_start(log_decay.cumsum(-2).exp_()) {}
};

// The values that the state takes in, [batch, key_heads, shared, tokens, value_dim]. By the delta
// rule each depends on those before it: a triangular system.
at::Tensor written_values(const Tokens& tokens, const ChunkDecay& decay, const at::Tensor& state) {
  if (!tokens.learning_rates) return tokens.values;
  const at::Tensor system =
      at::matmul(tokens.keys, tokens.keys.mT()).mul(decay.pairs).mul_(*tokens.learning_rates);
  const at::Tensor surprise = at::matmul(tokens.keys, state.mT())
                                  .mul_(decay.from_start)
                                  .neg_()
                                  .add_(tokens.values)
                                  .mul_(*tokens.learning_rates);
  return at::linalg_solve_triangular(system, surprise, /*upper=*/false, /*left=*/true,
                                     /*unitriangular=*/true);
}

at::Tensor chunk_outputs(const Tokens& tokens, const ChunkDecay& decay, const at::Tensor& values,
                         const at::Tensor& state) {
  const at::Tensor old = at::matmul(tokens.queries, state.mT()).mul_(decay.from_start);
  return at::matmul(at::matmul(tokens.queries, tokens.keys.mT()).mul(decay.pairs), values)
      .add_(old);
}

// One token, its states read and written once. Moves `state` on and returns the output.
at::Tensor advance_one(const Tokens& token, at::Tensor& state) {
  state = state.mul(token.log_decay.exp());
  at::Tensor value = token.values;  // [..., 1, value_dim]
  if (token.learning_rates) {
    value = value.sub(at::matmul(token.keys, state.mT())).mul_(*token.learning_rates);
  }
  state.addcmul_(value.mT(), token.keys);
  return at::matmul(token.queries, state.mT());
}

// A chunk of tokens. Moves `state` on and returns the outputs.
at::Tensor advance(const Tokens& tokens, at::Tensor& state) {
  const std::int64_t count = tokens.keys.size(3);
  if (count == 1) return advance_one(tokens, state);
  const ChunkDecay decay(tokens.log_decay);
  const at::Tensor values = written_values(tokens, decay, state);
  at::Tensor output = chunk_outputs(tokens, decay, values, state);
  const at::Tensor to_end = decay.pairs.narrow(-2, count - 1, 1).mT();
  state = at::matmul(values.mul(to_end).mT(), tokens.keys)
              .addcmul_(state, decay.from_start.narrow(-2, count - 1, 1));
  return output;
}

// The same with the state after each token: states [..., tokens, value_dim, key_dim].
struct AllStates {
  at::Tensor output, states;
};

AllStates advance_keeping_all(const Tokens& tokens, const at::Tensor& state) {
  const ChunkDecay decay(tokens.log_decay);
  const at::Tensor values = written_values(tokens, decay, state);
  const at::Tensor additions = values.unsqueeze(-1).mul(tokens.keys.unsqueeze(-2)).flatten(-2);
  const at::Tensor states = at::matmul(decay.pairs, additions)
                                .addcmul_(state.flatten(-2).unsqueeze(-2), decay.from_start);
  return {chunk_outputs(tokens, decay, values, state),
          states.unflatten(-1, {values.size(-1), tokens.keys.size(-1)})};
}

}  // namespace

ScanResult linear_attention(const LinearAttentionInput& input) {
  check(input);
  const Tokens tokens = prepare(input);
  const std::int64_t key_heads = input.keys.size(1), heads = input.values.size(1);
  at::Tensor state = input.state ? input.state->to(at::kFloat).unflatten(1, {key_heads, -1})
                                 : at::zeros({input.values.size(0), key_heads, heads / key_heads,
                                              input.values.size(3), input.keys.size(3)},
                                             tokens.values.options());
  const std::int64_t count = input.keys.size(2);
  const std::int64_t kept = input.wanted > 1 ? input.wanted : 0;  // tokens whose states all stay
  std::vector<at::Tensor> outputs;
  for (std::int64_t first = 0; first < count - kept; first += kChunk) {
    outputs.push_back(advance(tokens.narrow(first, std::min(kChunk, count - kept - first)), state));
  }
  at::Tensor states = state.unsqueeze(0);
  if (kept > 0) {
    const AllStates all = advance_keeping_all(tokens.narrow(count - kept, kept), state);
    outputs.push_back(all.output);
    states = all.states.permute({3, 0, 1, 2, 4, 5}).contiguous();
  }
  return {at::cat(outputs, 3).flatten(1, 2), states.flatten(2, 3)};
}

}  // namespace kvcache
