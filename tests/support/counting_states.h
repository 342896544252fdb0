// A stand-in for a model of linear and hybrid layers whose outputs are small integers: each token's
// is a sum of its convolutions' windows, its recurrences' states and the keys it sees.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvcache/cache/layered_cache.h"

namespace kvcache::testing {

// Kinds of layers, and caches mixed of them.
inline const LayerSpec kFull{};
inline const LayerSpec kLinear{.type = std::string(kLinearAttention)};
inline const LayerSpec kTwoStates{.type = std::string(kLinearAttention), .states = 2};
inline const LayerSpec kBoth{.type = std::string(kHybrid)};
inline const LayerSpec kBothSliding{.type = std::string(kHybridSliding), .window = 4};
inline const LayerSpec kNothing{.type = std::string(kDummy)};

inline const std::vector<std::vector<LayerSpec>> kMixes{
    {kLinear}, {kTwoStates, kNothing, kLinear}, {kFull, kLinear},
    {kBoth},   {kBothSliding, kTwoStates},      {kBoth, kBothSliding, kFull}};

using Numbers = std::vector<std::int64_t>;

inline constexpr std::int64_t kModulus = 1009;

// Taps of a layer's convolution `index`.
inline std::int64_t taps_of(std::int64_t index) { return 3 + index; }

// What the model says after each token of a text, from its definition.
inline Numbers outputs_of(const std::vector<LayerSpec>& layers, const Numbers& text) {
  Numbers outputs(text.size(), 0);
  const auto tokens = static_cast<std::int64_t>(text.size());
  const auto at = [&](std::int64_t i) { return i < 0 ? 0 : text[static_cast<std::size_t>(i)]; };
  for (const LayerSpec& spec : layers) {
    const bool states = has_states(spec);
    for (std::int64_t index = 0; states && index < spec.states; ++index) {
      std::int64_t state = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        state = (3 * state + at(t) + index) % kModulus;
        std::int64_t& output = outputs[static_cast<std::size_t>(t)];
        output += state;
        for (std::int64_t tap = 0; tap < taps_of(index); ++tap) {
          output += (tap + 1) * at(t - taps_of(index) + 1 + tap);
        }
      }
    }
    if (spec.type == kLinearAttention || spec.type == kConvolution || spec.type == kDummy) continue;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t first =
          spec.window == 0 ? 0 : std::max<std::int64_t>(t - spec.window + 1, 0);
      for (std::int64_t i = first; i <= t; ++i) outputs[static_cast<std::size_t>(t)] += at(i);
    }
  }
  return outputs;
}

// What one layer's convolution `index` adds in a step: x float [batch, tokens] -> [batch, tokens].
inline at::Tensor run_convolution(Step& step, std::int64_t layer, std::int64_t index,
                                  const at::Tensor& x) {
  const std::int64_t tokens = x.size(1), taps = taps_of(index);
  const at::Tensor inputs = at::stack({x, x}, 1);  // two channels
  const at::Tensor joined =
      step.update_conv_state(layer, inputs, {.kernel_size = taps, .index = index});
  at::Tensor outputs = at::zeros_like(x);
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    outputs += joined.select(1, tap % 2).narrow(1, tap, tokens) * (tap + 1);
  }
  return outputs;
}

// The same of its recurrence `index`.
inline at::Tensor run_recurrence(Step& step, std::int64_t layer, std::int64_t index,
                                 const at::Tensor& x) {
  at::Tensor outputs = at::zeros_like(x);
  at::Tensor state = step.recurrent_state(layer, index).value_or(at::zeros({x.size(0), 1}));
  std::vector<at::Tensor> states;
  for (std::int64_t t = 0; t < x.size(1); ++t) {
    state = (state * 3 + x.narrow(1, t, 1) + index).fmod(kModulus);
    outputs.narrow(1, t, 1) += state;
    states.push_back(state);
  }
  const std::int64_t wanted = step.wanted_states(layer);
  states.erase(states.begin(), states.end() - wanted);
  step.update_recurrent_state(layer, at::stack(states), index);
  return outputs;
}

inline at::Tensor run_states(Step& step, std::int64_t layer, std::int64_t index,
                             const at::Tensor& x) {
  const at::Tensor outputs = run_convolution(step, layer, index, x);
  return outputs + run_recurrence(step, layer, index, x);
}

inline at::Tensor run_attention(Step& step, std::int64_t layer, std::int64_t window,
                                const at::Tensor& x) {
  const at::Tensor keys = x.unsqueeze(1).unsqueeze(3);  // [batch, 1, tokens, 1]
  const View view = step.append(layer, keys, keys);
  const at::Tensor seen = dense(view).keys.squeeze(3).squeeze(1);
  at::Tensor outputs = at::zeros_like(x);
  for (std::int64_t t = 0; t < x.size(1); ++t) {
    const std::int64_t at = step.seen() + t;
    const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(at - window + 1, 0);
    outputs.narrow(1, t, 1) +=
        seen.narrow(1, first - view.visible.offset, at - first + 1).sum(1, /*keepdim=*/true);
  }
  return outputs;
}

// Runs `rows` new tokens a row through every layer of an open step: float [batch, tokens].
inline at::Tensor run(Step& step, const LayeredCache& cache, const std::vector<Numbers>& rows) {
  std::vector<at::Tensor> each;
  for (const Numbers& row : rows) each.push_back(at::tensor(row, at::kFloat));
  const at::Tensor x = at::stack(each);
  at::Tensor outputs = at::zeros_like(x);
  for (std::int64_t layer = 0; layer < cache.layer_count(); ++layer) {
    const LayerSpec& spec = cache.layer(layer).spec();
    const bool states = has_states(spec);
    for (std::int64_t index = 0; states && index < spec.states; ++index) {
      outputs += run_states(step, layer, index, x);
    }
    if (spec.type == kLinearAttention || spec.type == kConvolution || spec.type == kDummy) continue;
    outputs += run_attention(step, layer, spec.window, x);
  }
  return outputs;
}

// A committed step; returns what each row's new tokens gave.
inline std::vector<Numbers> feed_rows(LayeredCache& cache, const std::vector<Numbers>& rows) {
  Step step = cache.begin_step({.tokens = static_cast<std::int64_t>(rows[0].size()),
                                .batch = static_cast<std::int64_t>(rows.size())});
  const at::Tensor outputs = run(step, cache, rows);
  step.commit();
  std::vector<Numbers> result;
  for (std::int64_t row = 0; row < outputs.size(0); ++row) {
    const at::Tensor numbers = outputs[row].to(at::kLong).contiguous();
    const auto* data = numbers.const_data_ptr<std::int64_t>();
    result.emplace_back(data, data + numbers.numel());
  }
  return result;
}

inline Numbers feed_text(LayeredCache& cache, const Numbers& text) {
  return feed_rows(cache, {text})[0];
}

}  // namespace kvcache::testing
