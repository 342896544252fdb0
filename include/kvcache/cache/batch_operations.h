// Row operations, byte counts: written once, over visit(), for every kind of layer and storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/layer_stack.h"
#include "kvcache/core/memory.h"
#include "kvcache/core/visitor.h"

namespace kvcache::detail {

// The parts of a tensor whose content is promised, oldest first: one, or two where they go on at
// the first slot. They alias the tensor.
inline c10::SmallVector<at::Tensor, 2> live_parts(const TensorInfo& info,
                                                  const at::Tensor& tensor) {
  if (!info.token_dim) return {tensor};
  const std::int64_t slots = tensor.size(*info.token_dim);
  const std::int64_t end = std::min(info.live.end, slots);
  c10::SmallVector<at::Tensor, 2> parts;
  parts.push_back(tensor.narrow(*info.token_dim, info.live.first, end - info.live.first));
  if (end < info.live.end)
    parts.push_back(tensor.narrow(*info.token_dim, 0, info.live.end - slots));
  return parts;
}

// Walks every layer of the stack.
inline void visit_all(LayerStack& stack, Visitor& visitor) {
  for (std::int64_t i = 0; i < stack.size(); ++i) {
    stack.touch_for_visit(i);
    stack[i].visit(visitor);
  }
}

struct ByteCounts {
  std::int64_t live = 0;
  std::int64_t allocated = 0;
};

class CountBytes final : public Visitor {
 public:
  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined()) return;
    for (const at::Tensor& part : live_parts(info, tensor)) {
      counts.live += static_cast<std::int64_t>(part.nbytes());
    }
    counts.allocated += static_cast<std::int64_t>(tensor.nbytes());
  }
  void count(std::string_view, std::int64_t&) override {}

  ByteCounts counts;
};

// Refuses keys, values and inputs of convolutions of another dtype, where some are held. Throws
// ValueError.
class CheckDtype final : public Visitor {
 public:
  explicit CheckDtype(at::ScalarType dtype) : dtype_(dtype) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    const bool held = tensor.defined() && (!info.token_dim || info.live.length() > 0);
    check_value(!held || info.role == Role::recurrent || !tensor.is_floating_point() ||
                    tensor.scalar_type() == dtype_,
                "the cache's ", info.name, " are ", held ? tensor.scalar_type() : dtype_,
                ", but the model computes in ", dtype_, "; reset the cache or convert the model");
  }
  void count(std::string_view, std::int64_t&) override {}

 private:
  at::ScalarType dtype_;
};

// Checks `rows`, int [n] with values in [0, batch), and returns them. Throws ValueError.
inline std::vector<std::int64_t> checked_rows(const at::Tensor& rows, std::int64_t batch) {
  check_value(rows.defined() && rows.dim() == 1 && rows.numel() > 0 &&
                  at::isIntegralType(rows.scalar_type(), /*includeBool=*/false),
              "row indices must be a non-empty integer tensor [n], but are ",
              rows.defined() ? c10::str(rows.dtype(), " ", rows.sizes()) : "undefined");
  const at::Tensor host = rows.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> result(data, data + host.numel());
  for (const std::int64_t row : result) {
    check_value(row >= 0 && row < batch, "row index ", row, " is out of range: the cache has ",
                batch, " rows");
  }
  return result;
}

// Row i of every tensor becomes old row rows[i]. First pass: all new tensors are made,
// which may throw and changes nothing; second pass: they are taken over (`swap`).
class SelectRows final : public Visitor {
 public:
  SelectRows(const std::vector<std::int64_t>& rows, Memory& memory)
      : rows_(at::tensor(rows, at::kLong)), memory_(memory) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined() || !info.batch_dim) return;
    if (swapping_) {
      tensor = std::move(made_[next_++]);
      return;
    }
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape[static_cast<std::size_t>(*info.batch_dim)] = rows_.numel();
    at::Tensor fresh =
        memory_.allocate(shape, {.dtype = tensor.scalar_type(), .device = tensor.device()});
    const auto chosen = live_parts(info, tensor), target = live_parts(info, fresh);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      target[i].copy_(chosen[i].index_select(*info.batch_dim, rows_.to(tensor.device())));
    }
    made_.push_back(std::move(fresh));
  }
  void count(std::string_view, std::int64_t&) override {}

  void swap() { swapping_ = true; }

 private:
  at::Tensor rows_;
  Memory& memory_;
  bool swapping_ = false;
  std::size_t next_ = 0;
  std::vector<at::Tensor> made_;
};

// Permutes rows in place through a scratch as large as the largest live tensor, so that addresses
// stay and memory does not double. The first pass only measures; the scratch is all that can fail.
class ReorderRows final : public Visitor {
 public:
  ReorderRows(const std::vector<std::int64_t>& rows, Memory& memory)
      : rows_(at::tensor(rows, at::kLong)), memory_(memory) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined() || !info.batch_dim) return;
    const auto parts = live_parts(info, tensor);
    const Key key{tensor.device().str(), tensor.scalar_type()};
    if (!writing_) {
      check_state(info.writable, info.name,
                  " are shared with another cache and cannot be reordered "
                  "in place; use batch_select_indices");
      Scratch& scratch = scratch_.try_emplace(key, Scratch{tensor.device()}).first->second;
      for (const at::Tensor& part : parts) {
        scratch.elements = std::max(scratch.elements, part.numel());
      }
      return;
    }
    for (const at::Tensor& part : parts) {
      at::Tensor chosen = scratch_.at(key).buffer.narrow(0, 0, part.numel()).view(part.sizes());
      at::index_select_out(chosen, part, *info.batch_dim, rows_.to(tensor.device()));
      part.copy_(chosen);
    }
  }
  void count(std::string_view, std::int64_t&) override {}

  void write() {
    for (auto& [key, scratch] : scratch_) {
      scratch.buffer =
          memory_.allocate({scratch.elements}, {.dtype = key.second, .device = scratch.device});
    }
    writing_ = true;
  }

 private:
  using Key = std::pair<std::string, at::ScalarType>;  // device and dtype
  struct Scratch {
    at::Device device;
    std::int64_t elements = 0;
    at::Tensor buffer = {};
  };

  at::Tensor rows_;
  Memory& memory_;
  bool writing_ = false;
  std::map<Key, Scratch> scratch_;
};

}  // namespace kvcache::detail
