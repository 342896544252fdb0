#include "codec/groups.h"

#include <ATen/ops/cat.h>

#include <cstdint>
#include <utility>

#include "codec/parameters.h"
#include "kvcache/core/errors.h"
#include "kvcache/core/packing.h"

namespace kvcache::detail {
namespace {

// Of states [batch, heads, tokens, channels] of whole groups.
Groups groups_of(const at::Tensor& states, std::int64_t group_tokens, std::int64_t group_channels) {
  return {.values = states.to(at::kFloat)
                        .reshape({states.size(0), states.size(1), states.size(2) / group_tokens,
                                  group_tokens, states.size(3) / group_channels, group_channels})};
}

// [batch, heads, n, m, k, l] as [batch, heads, n * m, k * l]
at::Tensor flat(const at::Tensor& t) {
  return t.reshape({t.size(0), t.size(1), t.size(2) * t.size(3), t.size(4) * t.size(5)});
}

at::Tensor flat(const std::vector<Groups>& groups, at::Tensor Groups::*member) {
  std::vector<at::Tensor> parts;
  for (const Groups& each : groups) parts.push_back(flat(each.*member));
  return parts.size() == 1 ? parts.front() : at::cat(parts, 3);
}

}  // namespace

void check_states(const at::Tensor& states, const PackedFormat& format) {
  check_value(states.dim() == 4 && states.is_floating_point() &&
                  states.size(3) == format.head_dim && states.size(2) > 0 &&
                  states.size(2) % format.group_tokens == 0,
              "states to pack must be floating point [batch, kv_heads, tokens, ", format.head_dim,
              "] with a multiple of ", format.group_tokens, " tokens, but are ",
              states.scalar_type(), " ", states.sizes());
}

std::vector<Groups> grouped(const at::Tensor& states, const PackedFormat& format) {
  check_states(states, format);
  const std::int64_t rest = format.head_dim % format.group_channels;
  const std::int64_t whole = format.head_dim - rest;
  std::vector<Groups> groups;
  if (whole > 0) {
    groups.push_back(
        groups_of(states.narrow(3, 0, whole), format.group_tokens, format.group_channels));
  }
  if (rest > 0)
    groups.push_back(groups_of(states.narrow(3, whole, rest), format.group_tokens, rest));
  return groups;
}

void set_nearest_codes(Groups& groups, std::int64_t most) {
  // Where all values of a group are equal, the step is 0 and each of them is the offset.
  groups.codes = groups.values.sub(groups.offsets)
                     .div_(groups.scales)
                     .nan_to_num_(0)
                     .round_()
                     .clamp_(0, static_cast<double>(most));
}

PackedStates packed(std::vector<Groups> groups, const PackedFormat& format) {
  if (format.parameter_dtype == at::kHalf) {
    for (Groups& each : groups) {
      each.scales = as_half(each.scales);
      each.offsets = as_half(each.offsets);
      set_nearest_codes(each, (std::int64_t{1} << format.bits) - 1);
    }
  }
  return {.format = format,
          .codes = pack_codes(flat(groups, &Groups::codes).to(at::kByte), format.bits),
          .scales = flat(groups, &Groups::scales).to(format.parameter_dtype),
          .offsets = flat(groups, &Groups::offsets).to(format.parameter_dtype)};
}

}  // namespace kvcache::detail
