#include "kvcache/generation/stop_string_criteria.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache {

StopStringCriteria::StopStringCriteria(std::vector<std::string> stop_strings, MakeRunningText text)
    : stop_strings_(std::move(stop_strings)), make_text_(std::move(text)) {
  check_value(!stop_strings_.empty(), "stop_strings is empty; name a string, or leave it out");
  for (const std::string& stop : stop_strings_) {
    check_value(!stop.empty(), "stop_strings has an empty string, which would end every text");
    longest_ = std::max(longest_, stop.size());
  }
  check_value(make_text_ != nullptr,
              "stop_strings needs a tokenizer: set Inputs::text, as running_text(tokenizer) does");
  (void)detail::begin_text(make_text_);  // refuses one that makes none
}

at::Tensor StopStringCriteria::complete(const TokenRows& text) {
  const TokenRows host{text.ids.to(at::kCPU),
                       text.valid ? std::optional(text.valid->to(at::kCPU)) : std::nullopt};
  if (!goes_on(host)) begin(host);
  const auto ids = host.ids.accessor<std::int64_t, 2>();
  at::Tensor result = at::empty({host.ids.size(0)}, at::kBool);
  auto complete = result.accessor<bool, 1>();
  for (std::int64_t i = 0; i < host.ids.size(0); ++i) {
    Row& row = rows_[static_cast<std::size_t>(i)];
    bool now = false;
    for (std::int64_t column = seen_; column < host.length(); ++column) {
      if (host.valid && !host.valid->index({i, column}).item<bool>()) continue;
      now = ends_in(row.tail, row.text->push(ids[i][column])) || now;
    }
    complete[i] = now;
  }
  seen_ = host.length();
  seen_ids_ = host.ids.clone();
  return result.to(text.ids.device());
}

bool StopStringCriteria::goes_on(const TokenRows& text) const {
  return !rows_.empty() && text.ids.size(0) == seen_ids_.size(0) && text.length() > seen_ &&
         text.ids.narrow(1, 0, seen_).equal(seen_ids_);
}

void StopStringCriteria::begin(const TokenRows& text) {
  rows_.clear();
  const std::int64_t prompt = text.length() - 1;
  for (std::int64_t i = 0; i < text.ids.size(0); ++i) {
    const TokenRows before{
        text.ids.narrow(1, 0, prompt),
        text.valid ? std::optional(text.valid->narrow(1, 0, prompt)) : std::nullopt};
    const at::Tensor ids = before.row(i).contiguous();
    const auto* data = ids.const_data_ptr<std::int64_t>();
    // A token has a byte at least, so that this many hold the longest beginning of a string.
    const auto count = std::min<std::int64_t>(ids.numel(), static_cast<std::int64_t>(longest_));
    Row row{.text = detail::begin_text(make_text_)};
    for (std::int64_t k = ids.numel() - count; k < ids.numel(); ++k) {
      (void)ends_in(row.tail, row.text->push(data[k]));
    }
    rows_.push_back(std::move(row));
  }
  seen_ = prompt;
}

bool StopStringCriteria::ends_in(std::string& tail, std::string_view piece) const {
  if (piece.empty()) return false;
  const std::size_t had = tail.size();
  tail += piece;
  bool found = false;
  for (const std::string& stop : stop_strings_) {
    const std::size_t first = had + 1 > stop.size() ? had + 1 - stop.size() : 0;
    found = found || tail.find(stop, first) != std::string::npos;
  }
  tail.erase(0, tail.size() - std::min(tail.size(), longest_ - 1));
  return found;
}

}  // namespace kvcache
