#include "generation/replay_streamer.h"

#include <ATen/core/Formatting.h>

#include <utility>

#include "kvcache/core/errors.h"

namespace kvcache::detail {

void ReplayStreamer::begin() {
  next_ = 0;
  if (streamer_ != nullptr && !std::exchange(begun_, true)) streamer_->begin();
}

void ReplayStreamer::put(const at::Tensor& tokens) {
  if (streamer_ == nullptr) return;
  if (next_ < handed_on_.size()) {
    const at::Tensor& before = handed_on_[next_];
    check_state(tokens.equal(before), "new token ", next_, " is ", tokens,
                ", but an attempt that ran out of memory had streamed ", before,
                ", which cannot be taken back; leave the streamer out where caches round");
  } else {
    streamer_->put(tokens);
    handed_on_.push_back(tokens);
  }
  ++next_;
}

void ReplayStreamer::finish() {
  if (streamer_ == nullptr) return;
  check_state(next_ == handed_on_.size(), "the text ends after ", next_,
              " new tokens, but an attempt that ran out of memory had streamed ", handed_on_.size(),
              ", which cannot be taken back; leave the streamer out");
  streamer_->end();
}

}  // namespace kvcache::detail
