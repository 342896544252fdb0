// Processors that make given sequences of tokens likelier, less likely or impossible.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "kvcache/core/errors.h"
#include "kvcache/generation/generation_config.h"
#include "kvcache/generation/logits_processor.h"
#include "kvcache/generation/token_set.h"

namespace kvcache {

namespace detail {

// Adds a number to the score of a sequence's last token where the text ends with the others; where
// several sequences meet, their sum. All sequences of a length are compared at once.
class SequenceBiases {
 public:
  // `field`: where the sequences come from, in messages. Of equal sequences the last one counts.
  // Throws ValueError if there are none, for an empty one, an id outside of the vocabulary, and a
  // bias that is NaN or +inf.
  SequenceBiases(std::string_view field, const std::vector<SequenceBias>& sequences,
                 std::int64_t vocab_size) {
    check_value(!sequences.empty(), field, " holds no sequence; leave it out");
    std::map<std::vector<std::int64_t>, double> biases;
    for (const SequenceBias& sequence : sequences) {
      check_value(!sequence.ids.empty(), field, " holds an empty sequence; each needs a token");
      for (const std::int64_t id : sequence.ids) check_token(field, id, vocab_size);
      check_value(sequence.bias < std::numeric_limits<double>::infinity(), field, " has the bias ",
                  sequence.bias, "; it must be a number or -inf");
      biases[sequence.ids] = sequence.bias;
    }
    always_ = at::zeros({vocab_size}, at::kFloat);
    std::map<std::size_t, std::vector<SequenceBias>> by_length;
    for (const auto& [ids, bias] : biases) by_length[ids.size()].push_back({ids, bias});
    for (const auto& [length, group] : by_length) add(static_cast<std::int64_t>(length), group);
  }

  // New scores, summed in float32.
  at::Tensor added(const TokenRows& text, const at::Tensor& scores) {
    check_vocabulary(scores, always_.size(0));
    move_to(scores.device());
    return scores.to(at::kFloat).add(biases(text, scores.size(0))).to(scores.scalar_type());
  }

 private:
  // Sequences of one length above 1.
  struct Group {
    at::Tensor prefixes;  // int64 [n, length - 1]
    at::Tensor last;      // int64 [n]
    at::Tensor biases;    // float32 [n]
  };

  void add(std::int64_t length, const std::vector<SequenceBias>& sequences) {
    std::vector<at::Tensor> ids;
    std::vector<double> numbers;
    for (const SequenceBias& sequence : sequences) {
      ids.push_back(at::tensor(sequence.ids, at::kLong));
      numbers.push_back(sequence.bias);
    }
    const at::Tensor all = at::stack(ids);
    const at::Tensor last = all.select(1, length - 1).contiguous();
    const at::Tensor biases = at::tensor(numbers, at::kDouble).to(at::kFloat);
    if (length == 1) {
      always_.index_copy_(0, last, biases);
    } else {
      groups_.push_back({all.narrow(1, 0, length - 1), last, biases});
    }
  }

  void move_to(at::Device device) {
    if (always_.device() == device) return;
    always_ = always_.to(device);
    for (Group& group : groups_) {
      for (at::Tensor* part : {&group.prefixes, &group.last, &group.biases}) {
        *part = part->to(device);
      }
    }
  }

  // float32 [vocab] or [rows, vocab]
  at::Tensor biases(const TokenRows& text, std::int64_t rows) const {
    if (groups_.empty()) return always_;
    const at::Tensor texts = text.right_aligned();
    at::Tensor sum = always_.expand({rows, -1}).clone(at::MemoryFormat::Contiguous);
    for (const Group& group : groups_) {
      const std::int64_t before = group.prefixes.size(1);
      if (before > text.length()) continue;
      const at::Tensor ends = texts.narrow(1, text.length() - before, before).unsqueeze(1);
      const at::Tensor matches = ends.eq(group.prefixes).all(-1);  // [rows, n]
      sum.index_add_(1, group.last, at::where(matches, group.biases, 0.0));
    }
    return sum;
  }

  at::Tensor always_;  // float32 [vocab]: sequences of one token
  std::vector<Group> groups_;
};

}  // namespace detail

// Adds each sequence's bias to the score of its last token where the text ends with the tokens
// before that; biases of several sequences add up, in float32. -inf forbids.
class SequenceBiasLogitsProcessor final : public LogitsProcessor {
 public:
  // Of equal sequences the last one counts. Throws ValueError if there are none, for an empty one,
  // an id outside of the vocabulary, and a bias that is NaN or +inf.
  SequenceBiasLogitsProcessor(const std::vector<SequenceBias>& sequence_bias,
                              std::int64_t vocab_size)
      : biases_("sequence_bias", sequence_bias, vocab_size) {}

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    return biases_.added(text, scores);
  }

 private:
  detail::SequenceBiases biases_;
};

// No sequence of a list is completed. End tokens that stand alone are left out of the list.
class NoBadWordsLogitsProcessor final : public LogitsProcessor {
 public:
  // eos_token_id may be empty. Throws ValueError if no sequence is left, for an empty one, and for
  // an id outside of the vocabulary.
  NoBadWordsLogitsProcessor(const std::vector<std::vector<std::int64_t>>& bad_words_ids,
                            const std::vector<std::int64_t>& eos_token_id, std::int64_t vocab_size)
      : biases_("bad_words_ids", forbidden(bad_words_ids, eos_token_id), vocab_size) {}

  at::Tensor process(const TokenRows& text, const at::Tensor& scores) override {
    return biases_.added(text, scores);
  }

 private:
  static std::vector<SequenceBias> forbidden(const std::vector<std::vector<std::int64_t>>& words,
                                             const std::vector<std::int64_t>& eos) {
    std::vector<SequenceBias> sequences;
    for (const auto& word : words) {
      const bool ends = word.size() == 1 && std::count(eos.begin(), eos.end(), word[0]) > 0;
      if (!ends) sequences.push_back({word, detail::kMinusInfinity});
    }
    check_value(!sequences.empty() || words.empty(),
                "bad_words_ids holds nothing but lone end tokens, which it does not forbid; for a "
                "text that goes on set min_new_tokens");
    return sequences;
  }

  detail::SequenceBiases biases_;
};

}  // namespace kvcache
