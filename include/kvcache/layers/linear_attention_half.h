// The convolution and recurrent states of a layer. As AttentionHalf it keeps no length: the layer
// that has it says how many tokens a step had, and how many are taken back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/core/layer.h"
#include "kvcache/storage/state_storage.h"

namespace kvcache {

class LinearAttentionHalf final : public StatePort {
 public:
  // spec.states of each kind, of spec.state_sizes. Throws ValueError for less than one, and for
  // sizes of more.
  LinearAttentionHalf(const LayerSpec& spec, const std::shared_ptr<Memory>& memory)
      : sized_(spec.state_sizes.has_value()) {
    check_value(spec.states >= 1 && spec.states <= kMostStates, "a linear layer has ", spec.states,
                " states of each kind; it must have 1 to ", kMostStates);
    const auto states = static_cast<std::size_t>(spec.states);
    const StateSizes sizes = spec.state_sizes.value_or(StateSizes{});
    check_value(sizes.convolutions.size() <= states && sizes.recurrences.size() <= states,
                "a linear layer of ", states, " states of each kind cannot have ", sizes);
    for (std::size_t i = 0; i < states; ++i) {
      convolutions_.emplace_back(memory, size_at(sizes.convolutions, i));
      recurrences_.emplace_back(memory, size_at(sizes.recurrences, i));
    }
  }

  LinearAttentionHalf(const LinearAttentionHalf& other)
      : sized_(other.sized_), record_(other.record_), recorded_(other.recorded_) {
    for (const auto& state : other.convolutions_) convolutions_.push_back(state.clone());
    for (const auto& state : other.recurrences_) recurrences_.push_back(state.clone());
  }
  LinearAttentionHalf& operator=(const LinearAttentionHalf&) = delete;

  bool has_previous_state(std::int64_t index) const override {
    return convolutions_[checked(index)].holds() || recurrences_[checked(index)].holds();
  }

  at::Tensor update_conv_state(const at::Tensor& inputs, const ConvState& state) override {
    ConvolutionStorage& target = convolutions_[checked(state.index)];
    check_turn(target, "convolution", state.index);
    const std::int64_t tokens = inputs.defined() && inputs.dim() == 3 ? inputs.size(2) : 0;
    return target.stage(inputs, state.kernel_size, recorded_after(tokens));
  }

  std::optional<at::Tensor> recurrent_state(std::int64_t index) const override {
    return recurrences_[checked(index)].last();
  }

  std::int64_t wanted_states(std::int64_t tokens) const override {
    return std::min(tokens, record_ + 1);
  }

  at::Tensor update_recurrent_state(const at::Tensor& states, std::int64_t index) override {
    RecurrentStorage& target = recurrences_[checked(index)];
    check_turn(target, "recurrent", index);
    return target.stage(states, record_ + 1);
  }

  // Throws RuntimeError if a state got nothing in this step.
  void seal() const {
    const std::string name = first_without([](const auto& state) { return state.staged(); });
    check_state(name.empty(), name, " got nothing in this step; a step updates each state that ",
                "the layer's spec lists or earlier steps updated");
  }

  void publish(std::int64_t tokens) noexcept {
    for (auto& state : convolutions_) state.publish();
    for (auto& state : recurrences_) state.publish();
    recorded_ = recorded_after(tokens);
  }

  void discard() noexcept {
    for (auto& state : convolutions_) state.discard();
    for (auto& state : recurrences_) state.discard();
  }

  // Whether the states before the last `tokens` tokens are still held.
  bool can_crop(std::int64_t tokens) const { return tokens >= 0 && tokens <= recorded_; }

  // Takes `tokens` of `seen` tokens back, and lets go of what was recorded. Requires
  // can_crop(tokens).
  void crop(std::int64_t tokens, std::int64_t seen) noexcept {
    if (tokens == seen) return reset();  // before the first token there is no state
    trim(tokens, 0);
  }

  void activate_past_recording(std::optional<std::int64_t> max_tokens) noexcept {
    record_ = std::min(max_tokens.value_or(kDefaultRecord), kMostRecord);
    trim(0, std::min(recorded_, record_));
  }

  void reset() noexcept {
    for (auto& state : convolutions_) state.reset();
    for (auto& state : recurrences_) state.reset();
    recorded_ = 0;
  }

  // Bytes after a first step of so many tokens. Absent: the spec does not say how large states are.
  std::optional<std::int64_t> planned_bytes(const PlanInput& input) const {
    std::optional<std::int64_t> total = 0;
    const auto add = [&](const std::optional<std::int64_t>& bytes) {
      total = total && bytes ? std::optional(*total + *bytes) : std::nullopt;
    };
    for (const auto& state : convolutions_) {
      add(state.planned_bytes(input, std::min(input.tokens, record_)));
    }
    for (const auto& state : recurrences_) add(state.planned_bytes(input, record_ + 1));
    return total;
  }

  // Of a layer that has seen `seen` tokens. Throws ValueError for a visitor that sets numbers which
  // do not go together.
  void visit(Visitor& visitor, std::int64_t seen) {
    visitor.count("record_states", record_);
    visitor.count("recorded_states", recorded_);
    check_value(record_ <= kMostRecord, "record_states is ", record_, "; it must be at most ",
                kMostRecord);
    check_value(recorded_ <= std::min(record_, seen), "recorded_states is ", recorded_,
                "; it must be at most ", std::min(record_, seen), ": of ", seen,
                " tokens up to record_states = ", record_, " can be taken back");
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      convolutions_[i].visit(name_of("convolution", i), recorded_, visitor);
    }
    // Before the first token there is no state to go back to.
    const std::int64_t states = std::min(recorded_ + 1, seen);
    for (std::size_t i = 0; i < recurrences_.size(); ++i) {
      recurrences_[i].visit(name_of("recurrent", i), states, visitor);
    }
  }

  // See Layer: of one that has seen `seen` tokens. Each state that the spec lists is there from the
  // first token on, and of a spec without sizes either kind of each number.
  void check_filled(std::int64_t seen) const {
    check_value(seen > 0 || !holds(), "there is a state of a convolution or recurrence before the ",
                "first token; there must be none");
    if (seen == 0) return;
    for_each_state([&](const auto& state, const char* kind, std::size_t index) {
      state.check_filled(name_of(kind, index));
    });
    const std::string missing = first_without([](const auto& state) { return state.holds(); });
    check_value(missing.empty(), missing, " is missing after ", seen,
                " tokens; it must be there from the first one on");
  }

 private:
  static constexpr std::int64_t kMostStates = 1024;
  static constexpr std::int64_t kDefaultRecord = 16;  // tokens; a state can be megabytes
  static constexpr std::int64_t kMostRecord = std::int64_t{1}
                                              << 48;  // tokens; as good as unbounded

  static std::string name_of(const char* kind, std::size_t index) {
    return c10::str(kind, "_", index);
  }

  // States beyond those listed are not used.
  template <typename Size>
  std::optional<Size> size_at(const std::vector<Size>& sizes, std::size_t index) const {
    if (!sized_) return std::nullopt;
    return index < sizes.size() ? sizes[index] : Size{};
  }

  std::size_t checked(std::int64_t index) const {
    const auto states = static_cast<std::int64_t>(convolutions_.size());
    check_value(index >= 0 && index < states, "there is no state ", index,
                ": the layer has states 0 to ", states - 1, " of each kind");
    return static_cast<std::size_t>(index);
  }

  template <typename Call>
  void for_each_state(const Call& call) const {
    for (std::size_t i = 0; i < convolutions_.size(); ++i) call(convolutions_[i], "convolution", i);
    for (std::size_t i = 0; i < recurrences_.size(); ++i) call(recurrences_[i], "recurrent", i);
  }

  // The first state, by its name, for which `has` is false among those that there must be: those
  // listed or held, and of a spec without sizes either kind of each number. Empty: there is none.
  template <typename Has>
  std::string first_without(const Has& has) const {
    std::string name;
    for_each_state([&](const auto& state, const char* kind, std::size_t index) {
      const bool due = state.listed() || state.holds();
      if (name.empty() && due && !has(state)) name = c10::str(kind, " state ", index);
    });
    for (std::size_t i = 0; !sized_ && name.empty() && i < convolutions_.size(); ++i) {
      if (!has(convolutions_[i]) && !has(recurrences_[i])) name = c10::str("state ", i);
    }
    return name;
  }

  // Whether committed steps left any state.
  bool holds() const {
    bool any = false;
    for_each_state([&](const auto& state, const char*, std::size_t) { any |= state.holds(); });
    return any;
  }

  // A state is updated in each step, once, from the layer's first step on or never.
  template <typename State>
  void check_turn(const State& target, const char* kind, std::int64_t index) const {
    check_state(!target.staged(), kind, " state ", index, " was already updated in this step");
    check_state(target.holds() || !holds(), kind, " state ", index,
                " got nothing in the layer's first step, so it cannot begin at a later one");
  }

  std::int64_t recorded_after(std::int64_t tokens) const noexcept {
    return std::min(recorded_ + tokens, record_);
  }

  void trim(std::int64_t tokens, std::int64_t recorded) noexcept {
    for (auto& state : convolutions_) state.trim(tokens, recorded);
    for (auto& state : recurrences_) state.trim(tokens, recorded + 1);
    recorded_ = recorded;
  }

  bool sized_;  // whether the spec says which states there are
  std::vector<ConvolutionStorage> convolutions_;
  std::vector<RecurrentStorage> recurrences_;
  std::int64_t record_ = 0;    // tokens that may be taken back; 0: not recording
  std::int64_t recorded_ = 0;  // tokens that can be taken back now
};

}  // namespace kvcache
