// Row operations, byte counts: written once, over visit(), for every kind of layer and storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/cache/layer_stack.h"
#include "kvcache/core/dtype_name.h"
#include "kvcache/core/history.h"
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
    if (!tensor.defined() || info.role == Role::layout) return;
    for (const at::Tensor& part : live_parts(info, tensor)) {
      counts.live += static_cast<std::int64_t>(part.nbytes());
    }
    // A part of a buffer keeps all of it alive, but once.
    const c10::Storage& buffer = tensor.storage();
    if (buffers_.insert(buffer.unsafeGetStorageImpl()).second) {
      counts.allocated += static_cast<std::int64_t>(buffer.nbytes());
    }
  }
  void count(std::string_view, std::int64_t&) override {}

  ByteCounts counts;

 private:
  std::set<const void*> buffers_;
};

// Refuses keys, values and inputs of convolutions of another dtype, where some are held. Throws
// ValueError.
class CheckDtype final : public Visitor {
 public:
  explicit CheckDtype(at::ScalarType dtype) : dtype_(dtype) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    const bool held = tensor.defined() && (!info.token_dim || info.live.length() > 0);
    check_value(!held || info.role == Role::recurrent || info.role == Role::packed ||
                    !tensor.is_floating_point() || tensor.scalar_type() == dtype_,
                "the cache's ", info.name, " are ",
                dtype_name(held ? tensor.scalar_type() : dtype_), ", but the model computes in ",
                dtype_name(dtype_), "; reset the cache or convert the model");
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
              rows.defined() ? c10::str(dtype_name(rows), " ", rows.sizes()) : "undefined");
  const at::Tensor host = rows.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> result(data, data + host.numel());
  for (const std::int64_t row : result) {
    check_value(row >= 0 && row < batch, "row index ", row, " is out of range: the cache has ",
                batch, " rows");
  }
  return result;
}

// A tensor of rows `rows` of `tensor`, with new memory; only what is promised is filled in.
inline at::Tensor selected(const TensorInfo& info, const at::Tensor& tensor, const at::Tensor& rows,
                           Memory& memory) {
  const std::int64_t dim = info.batch_dim.value();
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = rows.numel();
  at::Tensor fresh =
      memory.allocate(shape, {.dtype = tensor.scalar_type(), .device = tensor.device()});
  const at::Tensor indices = rows.to(tensor.device());
  const auto chosen = live_parts(info, tensor), target = live_parts(info, fresh);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    target[i].copy_(chosen[i].index_select(dim, indices));
  }
  return fresh;
}

// Row i of every tensor becomes old row rows[i]. First pass: all new tensors are made, which may
// throw and changes nothing; second pass: they are taken over (`swap`).
class SelectRows final : public Visitor {
 public:
  SelectRows(const std::vector<std::int64_t>& rows, Memory& memory)
      : rows_(at::tensor(rows, at::kLong)), memory_(memory) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined() || !info.batch_dim) return;
    if (swapping_) {
      tensor = std::move(made_[next_++]);
    } else {
      made_.push_back(selected(info, tensor, rows_, memory_));
    }
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

// Buffers for one tensor at a time on its way to another place, one for each device and dtype: as
// large as the largest that was measured.
class Scratch {
 public:
  void measure(const at::Tensor& tensor, std::int64_t elements) {
    Buffer& buffer = buffers_.try_emplace(key_of(tensor), Buffer{tensor.device()}).first->second;
    buffer.elements = std::max(buffer.elements, elements);
  }

  // After all that is to be measured; may throw.
  void allocate(Memory& memory) {
    for (auto& [key, buffer] : buffers_) {
      buffer.content =
          memory.allocate({buffer.elements}, {.dtype = key.second, .device = buffer.device});
    }
  }

  // Room for a tensor of the shape and kind of `like`.
  at::Tensor for_like(const at::Tensor& like) const {
    return buffers_.at(key_of(like)).content.narrow(0, 0, like.numel()).view(like.sizes());
  }

 private:
  using Key = std::pair<std::string, at::ScalarType>;  // device and dtype
  struct Buffer {
    at::Device device;
    std::int64_t elements = 0;
    at::Tensor content = {};
  };

  static Key key_of(const at::Tensor& tensor) {
    return {tensor.device().str(), tensor.scalar_type()};
  }

  std::map<Key, Buffer> buffers_;
};

// Permutes rows in place through a scratch as large as the largest live tensor, so that addresses
// stay and memory does not double. Tensors that other caches read too are replaced by copies, and
// those that all rows share stay. The first pass measures and copies; with the scratch it is all
// that can fail.
class ReorderRows final : public Visitor {
 public:
  ReorderRows(const std::vector<std::int64_t>& rows, Memory& memory)
      : rows_(at::tensor(rows, at::kLong)), memory_(memory) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    if (!tensor.defined() || !info.batch_dim) return;
    if (!info.writable) {
      replace(info, tensor);
      return;
    }
    for (const at::Tensor& part : live_parts(info, tensor)) {
      writing_ ? write(part, *info.batch_dim) : scratch_.measure(part, part.numel());
    }
  }
  void count(std::string_view, std::int64_t&) override {}

  void write() {
    scratch_.allocate(memory_);
    writing_ = true;
  }

 private:
  void replace(const TensorInfo& info, at::Tensor& tensor) {
    if (writing_) {
      tensor = std::move(copies_[next_++]);
    } else {
      copies_.push_back(selected(info, tensor, rows_, memory_));
    }
  }

  void write(const at::Tensor& live, std::int64_t batch_dim) {
    at::Tensor chosen = scratch_.for_like(live);
    at::index_select_out(chosen, live, batch_dim, rows_.to(live.device()));
    live.copy_(chosen);
  }

  at::Tensor rows_;
  Memory& memory_;
  bool writing_ = false;
  Scratch scratch_;
  std::size_t next_ = 0;
  std::vector<at::Tensor> copies_;  // of tensors that other caches read too
};

// New rows of a stack in two parts, so that several stacks change together: prepare() does all that
// may throw and changes nothing, apply() the rest.
class RowChange {
 public:
  // As many rows as there are change places where they lie: addresses stay. Throws RuntimeError
  // where there cannot be another number of them.
  RowChange(LayerStack& stack, std::vector<std::int64_t> rows)
      : stack_(stack), rows_(std::move(rows)) {
    const auto count = static_cast<std::int64_t>(rows_.size());
    stack.check_can_have(count);
    if (count == stack.batch) {
      reorder_.emplace(rows_, *stack.memory());
    } else {
      select_.emplace(rows_, *stack.memory());
    }
  }

  void prepare() {
    walk();
    history_ = stack_.history;
    history_.select(rows_);
    if (reorder_) reorder_->write();
    if (select_) select_->swap();
  }

  void apply() {
    walk();
    stack_.history = std::move(history_);
    stack_.batch = static_cast<std::int64_t>(rows_.size());
  }

 private:
  void walk() {
    if (reorder_) visit_all(stack_, *reorder_);
    if (select_) visit_all(stack_, *select_);
  }

  LayerStack& stack_;
  std::vector<std::int64_t> rows_;
  std::optional<ReorderRows> reorder_;  // one of the two
  std::optional<SelectRows> select_;
  History history_;
};

}  // namespace kvcache::detail
