// Walks over a storage that is part of another one, whose integers follow from the other's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvcache/core/view.h"
#include "kvcache/core/visitor.h"

namespace kvcache::detail {

struct InnerStorage {
  Range held;            // positions
  bool of_some = false;  // of the layer's tokens, beside packed ones
  std::string_view keys = "keys";
  std::string_view values = "values";
  std::string_view shape_fixed = "shape_fixed";
};

class InnerVisitor final : public Visitor {
 public:
  InnerVisitor(Visitor& visitor, const InnerStorage& inner) : visitor_(visitor), inner_(inner) {}

  void tensor(const TensorInfo& info, at::Tensor& tensor) override {
    const bool is_keys = info.name == "keys";
    TensorInfo own = info;
    own.name = is_keys ? inner_.keys : inner_.values;
    if (inner_.of_some) own.role = Role::beside_packed;
    visitor_.tensor(own, tensor);
    if (!tensor.defined()) return;
    (is_keys ? seen_.keys : seen_.values) = tensor;
    has_rows_ = info.batch_dim.has_value();
  }

  void count(std::string_view name, std::int64_t& value) override {
    if (name == "held_first") {
      value = inner_.held.first;
    } else if (name == "held_end") {
      value = inner_.held.end;
    } else if (name == "shape_fixed") {
      visitor_.count(inner_.shape_fixed, value);
    } else {
      visitor_.count(name, value);
    }
  }

  // Whether shape() has the number of rows: false where all rows share the last tokens.
  bool has_rows() const { return has_rows_; }

  // Of what is held; absent before the first keys.
  std::optional<KeyValueShape> shape() const {
    const auto is_four = [](const at::Tensor& t) { return t.defined() && t.dim() == 4; };
    if (!is_four(seen_.keys) || !is_four(seen_.values)) return std::nullopt;
    return shape_of(seen_);
  }

 private:
  Visitor& visitor_;
  InnerStorage inner_;
  KeyValue seen_;
  bool has_rows_ = true;
};

}  // namespace kvcache::detail
