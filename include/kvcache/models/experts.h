// A sparse mixture of experts (https://arxiv.org/abs/1701.06538) in place of an MLP: a router picks
// some experts for each token, whose outputs are added up by weight, maybe beside a shared expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/io/state_dict.h"
#include "kvcache/models/gated_mlp.h"
#include "kvcache/models/linear.h"

namespace kvcache {

// The experts of each token.
struct ExpertChoice {
  at::Tensor experts;  // int64 [n, top_k], each row's best first
  at::Tensor weights;  // [n, top_k] in the dtype of the hidden states
};

struct Router {
  // softmax: over all experts, in float32; sigmoid: of each score alone, in float32.
  enum class Scores { softmax, sigmoid };

  Linear scores;  // hidden -> one score an expert
  std::int64_t top_k;
  Scores kind = Scores::softmax;
  bool normalize = false;  // weights of the chosen experts add up to 1

  // hidden [n, hidden_size].
  ExpertChoice operator()(const at::Tensor& hidden) const;
};

// An expert that every token passes through.
struct SharedExpert {
  GatedMlp mlp;
  std::optional<Linear> gate = {};  // hidden -> 1; its sigmoid weighs the output
};

struct ExpertsShape {
  std::int64_t experts;
  std::int64_t hidden;
  std::int64_t inner;
  // Of fused weights: "gate_up_proj" [experts, hidden, 2 * inner] and "down_proj" [experts, inner,
  // hidden], as llama4 has them, instead of [experts, 2 * inner, hidden] and [experts, hidden,
  // inner].
  bool input_first = false;
};

// Takes the experts' weights from a view of them ("mlp.experts"): fused tensors "gate_up_proj" and
// "down_proj" where the file has them, else "<i>.gate_proj.weight" and so on. Nothing is copied.
std::vector<GatedMlp> read_experts(const StateDict& weights, const ExpertsShape& shape,
                                   Activation activation);

struct ExpertsBlock {
  Router router;
  std::vector<GatedMlp> experts;
  std::optional<SharedExpert> shared = {};
  bool weigh_inputs = false;  // an expert's weight scales what goes in, not what comes out

  // hidden [n, hidden_size] -> the same shape, a new tensor. An expert runs once, on the tokens
  // that chose it.
  at::Tensor operator()(const at::Tensor& hidden) const;
};

}  // namespace kvcache
