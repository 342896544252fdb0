// A layer's state apart from the layer: its integers and its live bytes by name. What saves, loads
// and joins caches goes through it, for every kind of layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/batch_operations.h"
#include "kvcache/core/dtype_name.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/layer.h"
#include "kvcache/core/memory.h"
#include "kvcache/core/visitor.h"

namespace kvcache::detail {

struct StateTensor {
  Role role = Role::attention;
  at::Tensor content = {};  // what is live, oldest first; undefined: the layer holds none
  std::optional<std::int64_t> batch_dim = {};
  std::optional<std::int64_t> token_dim = {};
};

struct LayerState {
  std::map<std::string, std::int64_t> counts;
  std::map<std::string, StateTensor> tensors;
};

// Reads a layer of `batch` rows; without any, buffers that are there hold nothing. Parts are joined
// and rows that all are one are written out; other contents alias the layer.
class ReadState final : public Visitor {
 public:
  explicit ReadState(std::int64_t batch) : batch_(batch) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    StateTensor& entry = state_.tensors[std::string(info.name)];
    entry.role = info.role;
    const bool one_row = !info.batch_dim && info.token_dim;  // which all rows read
    if (!entry.batch_dim) entry.batch_dim = one_row ? 0 : info.batch_dim;
    entry.token_dim = info.token_dim;
    if (!tensor.defined() || batch_ == 0) return;
    std::vector<at::Tensor> parts;
    if (entry.content.defined()) parts.push_back(entry.content);
    for (const at::Tensor& part : live_parts(info, tensor)) {
      parts.push_back(one_row ? rows_written_out(part) : part);
    }
    entry.content = parts.size() == 1 ? parts[0] : at::cat(parts, *info.token_dim);
  }
  void count(std::string_view name, std::int64_t& value) override {
    state_.counts[std::string(name)] = value;
  }

  LayerState take() { return std::move(state_); }

 private:
  at::Tensor rows_written_out(const at::Tensor& part) const {
    std::vector<std::int64_t> shape = part.sizes().vec();
    shape[0] = batch_;
    return part.expand(shape);
  }

  std::int64_t batch_;
  LayerState state_;
};

inline LayerState read_state(Layer& layer, std::int64_t batch) {
  ReadState read(batch);
  layer.visit(read);
  return read.take();
}

// What a layer is filled into.
struct WriteOptions {
  Memory& memory;
  at::Device device = at::kCPU;
  std::int64_t batch = 0;                    // rows
  std::optional<at::ScalarType> dtype = {};  // of all but recurrent states; absent: any
};

// Fills a layer that was reset.
class WriteState final : public Visitor {
 public:
  WriteState(const LayerState& state, const WriteOptions& options)
      : state_(state), options_(options) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    const auto found = state_.tensors.find(std::string(info.name));
    if (found == state_.tensors.end() || !found->second.content.defined()) {
      check_value(!info.token_dim || info.live.length() == 0, "there are no ", info.name, " for ",
                  info.live.length(), " tokens");
      return;
    }
    tensors_.insert(found->first);
    const at::Tensor& content = found->second.content;
    check(info, content);
    std::vector<std::int64_t> shape = content.sizes().vec();
    if (info.token_dim) {
      // A buffer for nothing only says what is going to be held.
      shape[static_cast<std::size_t>(*info.token_dim)] =
          info.live.end == 0 ? 1 : info.slots.value_or(info.live.end);
    }
    if (info.role == Role::layout) {
      tensor = content.to(at::kCPU);
      return;
    }
    const bool fits = tensor.defined() && tensor.sizes() == shape &&
                      tensor.device() == options_.device &&
                      tensor.scalar_type() == content.scalar_type();
    if (!fits) {
      tensor = options_.memory.allocate(
          shape, {.dtype = content.scalar_type(), .device = options_.device});
    }
    std::int64_t done = 0;
    for (const at::Tensor& part : live_parts(info, tensor)) {
      const std::int64_t tokens = info.token_dim ? part.size(*info.token_dim) : 0;
      part.copy_(info.token_dim ? content.narrow(*info.token_dim, done, tokens) : content);
      done += tokens;
    }
  }

  void count(std::string_view name, std::int64_t& value) override {
    const auto found = state_.counts.find(std::string(name));
    check_value(found != state_.counts.end(), "there is no number '", name, "'");
    value = found->second;
    counts_.insert(found->first);
  }

  // Refuses what the layer has no place for. Throws ValueError.
  void check_all_taken() const {
    for (const auto& [name, value] : state_.counts) {
      check_value(counts_.contains(name), "there is a number '", name, "' of ", value,
                  ", which the layer does not have");
    }
    for (const auto& [name, tensor] : state_.tensors) {
      check_value(!tensor.content.defined() || tensors_.contains(name), "there is a tensor '", name,
                  "' ", tensor.content.sizes(), ", which the layer does not have");
    }
  }

 private:
  // Elements, for each row and slot, of a tensor that has none in all: nothing else bounds what a
  // file says of it.
  static constexpr std::int64_t kMostUnfilled = std::int64_t{1} << 20;

  void check(const TensorInfo& info, const at::Tensor& content) const {
    const auto has_size = [&](std::optional<std::int64_t> dim, std::int64_t size) {
      return !dim || (*dim < content.dim() && content.size(*dim) == size);
    };
    check_value(options_.batch > 0, "there are ", info.name, " ", content.sizes(),
                ", but no rows; there must be none");
    check_value(has_size(info.batch_dim, options_.batch), info.name, " are ", content.sizes(),
                ", but must have ", options_.batch, " rows in dimension ",
                info.batch_dim.value_or(0));
    check_value(has_size(info.token_dim, info.live.length()), info.name, " are ", content.sizes(),
                ", but must hold ", info.live.length(), " tokens in dimension ",
                info.token_dim.value_or(0));
    check_value(info.role == Role::recurrent || info.role == Role::packed ||
                    info.role == Role::layout || !options_.dtype ||
                    content.scalar_type() == *options_.dtype,
                info.name, " are ", dtype_name(content), ", but must be ",
                dtype_name(options_.dtype.value_or(content.scalar_type())));
    if (content.numel() > 0) return;
    std::int64_t elements = 1;
    for (std::int64_t dim = 0; dim < content.dim(); ++dim) {
      if (dim == info.batch_dim || dim == info.token_dim) continue;
      const std::int64_t size = std::max<std::int64_t>(content.size(dim), 1);
      check_value(elements <= kMostUnfilled / size, info.name, " are ", content.sizes(),
                  ", of which there is no element, for more than ", kMostUnfilled,
                  " of them in a row's token");
      elements *= size;
    }
  }

  const LayerState& state_;
  const WriteOptions& options_;
  std::set<std::string> counts_, tensors_;  // that the layer took
};

// Fills `layer`, which was reset. Throws ValueError naming what does not fit; the layer is of no
// use then.
inline void write_state(Layer& layer, const LayerState& state, const WriteOptions& options) {
  WriteState write(state, options);
  layer.visit(write);
  write.check_all_taken();
  layer.check_filled();
}

// The device that a layer's tensors lie on; absent where it has none.
inline std::optional<at::Device> device_of(const LayerState& state) {
  for (const auto& [name, tensor] : state.tensors) {
    if (tensor.content.defined()) return tensor.content.device();
  }
  return std::nullopt;
}

// How far back is recorded is a setting, which stays on: `layer`, which is to take the place of
// `former`, records as many tokens as the one of the two that records more.
class KeepRecording {
 public:
  static void of(Layer& former, Layer& layer) {
    Collect collect;
    former.visit(collect);
    Raise raise(collect.tokens);
    layer.visit(raise);
  }

 private:
  using Tokens = std::map<std::string, std::int64_t>;

  static bool is_setting(std::string_view name) {
    return name == "record" || name == "record_states";
  }

  struct Collect final : Visitor {
    void tensor(const TensorInfo&, at::Tensor&) override {}
    void count(std::string_view name, std::int64_t& value) override {
      if (is_setting(name)) tokens[std::string(name)] = value;
    }

    Tokens tokens;
  };

  class Raise final : public Visitor {
   public:
    explicit Raise(const Tokens& tokens) : tokens_(tokens) {}

    void tensor(const TensorInfo&, at::Tensor&) override {}
    void count(std::string_view name, std::int64_t& value) override {
      const auto found = tokens_.find(std::string(name));
      if (found != tokens_.end()) value = std::max(value, found->second);
    }

   private:
    const Tokens& tokens_;
  };
};

}  // namespace kvcache::detail
