#include "tests/support/sim/runtime.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace kvcache::testing::sim {
namespace {

constexpr std::size_t kStreams = 33;  // of a device: the default one and a pool of 32

}  // namespace

Runtime& Runtime::get() {
  static auto& runtime = *new Runtime;  // outlives every tensor
  return runtime;
}

Runtime::Runtime() {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    for (std::size_t i = 0; i < kStreams; ++i) {
      const c10::Stream handle(c10::Stream::UNSAFE, sim::device(device),
                               static_cast<c10::StreamId>(i));
      streams_[std::size_t(device)].push_back(
          std::make_unique<Stream>(std::size_t(device) * kStreams + i, handle));
    }
  }
}

Stream& Runtime::stream(const c10::Stream& handle) {
  TORCH_CHECK(handle.device_type() == c10::kPrivateUse1 && handle.device_index() >= 0 &&
                  handle.device_index() < kDevices && handle.id() >= 0 &&
                  handle.id() < std::int64_t(kStreams),
              "no stream of a simulated device: ", handle);
  return *streams_[std::size_t(handle.device_index())][std::size_t(handle.id())];
}

Stream& Runtime::current_stream(c10::DeviceIndex device) {
  return stream(current_stream_of(device));
}

c10::Stream Runtime::pool_stream(c10::DeviceIndex device) {
  const std::lock_guard guard(lock_);
  const std::size_t next = next_in_pool_[std::size_t(device)]++ % (kStreams - 1);
  return streams_[std::size_t(device)][next + 1]->handle();
}

void Runtime::launch(Stream& stream, TaskPtr task) {
  if (task->kind == Task::Kind::kernel) count([](Counters& c) { ++c.launches; });
  const std::lock_guard guard(lock_);
  if (capture_ && capture_->stream == &stream) {
    capture_->tasks.push_back(std::move(task));
  } else {
    queue(stream, task);
  }
}

void Runtime::launch_uncaptured(Stream& stream, TaskPtr task) {
  const std::lock_guard guard(lock_);
  queue(stream, task);
}

void Runtime::queue(Stream& stream, const TaskPtr& task) {
  check(stream, *task);
  stream.push(Stream::Job::work, [this, &stream, task, delay = delay_of(stream, *task)] {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    try {
      if (task->run) task->run();
    } catch (...) {
      keep_error(stream.handle().device_index());
    }
  });
}

void Runtime::check(Stream& stream, const Task& task) {
  stream.known.merge(host_);
  stream.known.tick(stream.number());
  if (!config_.detect_races) return;
  const Actor actor{stream.number(), stream.known.at(stream.number()), task.name, stream.place()};
  for (const Access& access : task.accesses) races_.access(access, actor, stream.known);
}

std::chrono::nanoseconds Runtime::delay_of(Stream& stream, const Task& task) {
  if (task.kind == Task::Kind::memory) return {};
  const std::chrono::nanoseconds most =
      task.kind == Task::Kind::copy ? config_.copy_delay : config_.kernel_delay;
  std::chrono::nanoseconds delay{0};
  if (most.count() > 0) {
    delay = std::chrono::nanoseconds(stream.random() % std::uint64_t(most.count() + 1));
  }
  if (config_.copy_gbps > 0) {
    delay += std::chrono::nanoseconds(std::int64_t(double(task.host_bytes) / config_.copy_gbps));
  }
  return delay;
}

EventPtr Runtime::record(Stream& stream) {
  const std::lock_guard guard(lock_);
  VectorClock known = stream.known;
  known.merge(host_);
  auto event = std::make_shared<EventState>(std::move(known));
  stream.push(Stream::Job::marker, [event] { event->set(); });
  return event;
}

void Runtime::block(Stream& stream, EventPtr event) {
  const std::lock_guard guard(lock_);
  stream.known.merge(event->known());
  stream.push(Stream::Job::work, [event = std::move(event)] { event->wait(); });
}

void Runtime::synchronize(const EventPtr& event, c10::DeviceIndex device) {
  refuse_while_capturing("wait for a device");
  count([](Counters& c) { ++c.synchronizations; });
  event->wait();
  {
    const std::lock_guard guard(lock_);
    host_.merge(event->known());
  }
  rethrow_error(device);
}

void Runtime::synchronize(Stream& stream) {
  refuse_while_capturing("wait for a device");
  synchronize(record(stream), stream.handle().device_index());
}

void Runtime::synchronize_device(c10::DeviceIndex device) {
  refuse_while_capturing("wait for a device");
  count([](Counters& c) { ++c.synchronizations; });
  std::vector<EventPtr> events;
  for (const auto& stream : streams_[std::size_t(device)]) {
    // A stream that was never used needs no thread for this.
    if (was_used(*stream)) events.push_back(record(*stream));
  }
  for (const EventPtr& event : events) {
    event->wait();
    const std::lock_guard guard(lock_);
    host_.merge(event->known());
  }
  rethrow_error(device);
}

bool Runtime::was_used(const Stream& stream) {
  const std::lock_guard guard(lock_);
  return stream.known.at(stream.number()) > 0;
}

bool Runtime::query(const EventPtr& event) {
  if (!event->is_set()) return false;
  const std::lock_guard guard(lock_);
  host_.merge(event->known());
  return true;
}

bool Runtime::query(Stream& stream) {
  refuse_while_capturing("ask whether a stream is done");
  const std::lock_guard guard(lock_);
  if (!stream.is_idle()) return false;
  host_.merge(stream.known);
  return true;
}

void Runtime::note_free(const Access& bytes, Stream& owner, const std::vector<EventPtr>& used_on) {
  static const std::string* const name = intern("free");
  const std::lock_guard guard(lock_);
  owner.known.merge(host_);
  owner.known.tick(owner.number());
  if (!config_.detect_races) return;
  VectorClock known = owner.known;
  for (const EventPtr& event : used_on) known.merge(event->known());
  const Actor actor{owner.number(), owner.known.at(owner.number()), name, owner.place()};
  races_.access(bytes, actor, known);
}

void Runtime::forget(const Access& bytes) {
  const std::lock_guard guard(lock_);
  races_.forget(bytes.first, bytes.end);
}

void Runtime::note_host_access(const Access& bytes) {
  const std::lock_guard guard(lock_);
  if (config_.detect_races) races_.host_access(bytes, host_);
}

std::vector<std::string> Runtime::take_races() {
  const std::lock_guard guard(lock_);
  return races_.take();
}

void Runtime::begin_capture(const std::shared_ptr<Capture>& capture, Stream& stream) {
  const std::lock_guard guard(lock_);
  TORCH_CHECK(!capture_, "another graph is being captured");
  capture_ = capture;
  capture_->stream = &stream;
  capture_->thread = std::this_thread::get_id();
}

void Runtime::end_capture() {
  const std::lock_guard guard(lock_);
  capture_.reset();
}

std::shared_ptr<Capture> Runtime::capture_of(const Stream& stream) {
  const std::lock_guard guard(lock_);
  return capture_ && capture_->stream == &stream ? capture_ : nullptr;
}

void Runtime::refuse_while_capturing(const char* what) {
  const std::lock_guard guard(lock_);
  TORCH_CHECK(!capture_ || capture_->thread != std::this_thread::get_id(),
              "a graph is being captured, so this thread may not ", what);
}

void Runtime::configure(const Config& config) {
  synchronize_device(0);
  synchronize_device(1);
  {
    const std::lock_guard guard(lock_);
    config_ = config;
    for (auto& streams : streams_) {
      for (auto& stream : streams) stream->random.seed(config.seed * 1000 + stream->number());
    }
  }
  count([](Counters& c) { c = {}; });
}

Config Runtime::config() {
  const std::lock_guard guard(lock_);
  return config_;
}

void Runtime::count(const std::function<void(Counters&)>& change) {
  const std::lock_guard guard(counters_lock_);
  change(counters_);
}

Counters Runtime::counters() {
  const std::lock_guard guard(counters_lock_);
  return counters_;
}

void Runtime::shutdown() {
  down_ = true;
  for (auto& streams : streams_) {
    for (auto& stream : streams) stream->stop();
  }
}

void Runtime::keep_error(c10::DeviceIndex device) {
  const std::lock_guard guard(errors_lock_);
  auto& kept = errors_[std::size_t(device)];
  if (!kept) kept = std::current_exception();
}

void Runtime::rethrow_error(c10::DeviceIndex device) {
  std::exception_ptr kept;
  {
    const std::lock_guard guard(errors_lock_);
    kept = std::exchange(errors_[std::size_t(device)], nullptr);
  }
  if (kept) std::rethrow_exception(kept);
}

}  // namespace kvcache::testing::sim
