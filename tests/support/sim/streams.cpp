#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <unordered_set>

#include "tests/support/sim/runtime.h"

namespace kvcache::testing::sim {

const std::string* intern(const std::string& text) {
  static auto& lock = *new std::mutex;
  static auto& texts = *new std::unordered_set<std::string>;
  const std::lock_guard guard(lock);
  return &*texts.insert(text).first;
}

void EventState::set() {
  const std::lock_guard guard(mutex_);
  time_ = std::chrono::steady_clock::now();
  set_ = true;
  changed_.notify_all();
}

void EventState::wait() {
  std::unique_lock guard(mutex_);
  changed_.wait(guard, [&] { return set_; });
}

bool EventState::is_set() {
  const std::lock_guard guard(mutex_);
  return set_;
}

Stream::Stream(std::size_t number, c10::Stream handle)
    : number_(number),
      handle_(handle),
      place_(intern(c10::str("stream ", handle.id(), " of ", handle.device()))) {}

void Stream::push(Job kind, std::function<void()> job) {
  const std::lock_guard guard(mutex_);
  jobs_.emplace_back(kind, std::move(job));
  if (kind == Job::work) ++unfinished_;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { work(); });
  }
  changed_.notify_one();
}

void Stream::stop() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  thread_ = {};
  stopping_ = false;
}

bool Stream::is_idle() {
  const std::lock_guard guard(mutex_);
  return unfinished_ == 0;
}

void Stream::work() {
  // Kernels run below autograd, on tensors that nobody else sees.
  const c10::InferenceMode inference;
  for (;;) {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto [kind, job] = std::move(jobs_.front());
    jobs_.pop_front();
    guard.unlock();
    job();
    guard.lock();
    if (kind == Job::work) --unfinished_;
  }
}

}  // namespace kvcache::testing::sim
