// Row operations, byte counts: written once, over visit(), for every kind of layer and storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

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

// The part of a tensor whose content is promised.
inline at::Tensor live_part(const TensorInfo& info, const at::Tensor& tensor) {
  return info.token_dim ? tensor.narrow(*info.token_dim, info.live.first, info.live.length())
                        : tensor;
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
    counts.live += static_cast<std::int64_t>(live_part(info, tensor).nbytes());
    counts.allocated += static_cast<std::int64_t>(tensor.nbytes());
  }
  void count(std::string_view, std::int64_t&) override {}

  ByteCounts counts;
};

// Refuses keys, values and inputs of convolutions of another dtype. Throws ValueError.
class CheckDtype final : public Visitor {
 public:
  explicit CheckDtype(at::ScalarType dtype) : dtype_(dtype) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    check_value(!tensor.defined() || info.role == Role::recurrent || !tensor.is_floating_point() ||
                    tensor.scalar_type() == dtype_,
                "the cache's ", info.name, " are ",
                tensor.defined() ? tensor.scalar_type() : dtype_, ", but the model computes in ",
                dtype_, "; reset the cache or convert the model");
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
    live_part(info, fresh)
        .copy_(live_part(info, tensor).index_select(*info.batch_dim, rows_.to(tensor.device())));
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
    const at::Tensor live = live_part(info, tensor);
    const Key key{tensor.device().str(), tensor.scalar_type()};
    if (!writing_) {
      check_state(info.writable, info.name,
                  " are shared with another cache and cannot be reordered "
                  "in place; use batch_select_indices");
      Scratch& scratch = scratch_.try_emplace(key, Scratch{tensor.device()}).first->second;
      scratch.elements = std::max(scratch.elements, live.numel());
      return;
    }
    at::Tensor chosen = scratch_.at(key).buffer.narrow(0, 0, live.numel()).view(live.sizes());
    at::index_select_out(chosen, live, *info.batch_dim, rows_.to(tensor.device()));
    live.copy_(chosen);
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
