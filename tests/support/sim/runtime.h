// The streams, the order between them, and the host's side of both: what is launched is checked for
// order, delayed and queued here, or kept while a graph is captured.
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/sim/race_check.h"
#include "tests/support/sim/sim.h"
#include "tests/support/sim/vector_clock.h"

namespace kvcache::testing::sim {

// One piece of a stream's work. It may run more than once, as graphs are replayed, and holds no
// device memory: what frees that too early must be seen.
struct Task {
  enum class Kind { kernel, copy, memory };  // memory: no delay, not counted

  const std::string* name;  // from intern()
  Kind kind = Kind::kernel;
  std::vector<Access> accesses = {};
  std::function<void()> run = {};
  std::int64_t host_bytes = 0;  // that pass between host and device
};
using TaskPtr = std::shared_ptr<const Task>;

// A string that lives as long as the program.
const std::string* intern(const std::string& text);

// What a recorded event waits for. Recording again makes another one.
class EventState {
 public:
  explicit EventState(VectorClock known) : known_(std::move(known)) {}

  void set();
  void wait();
  bool is_set();
  std::chrono::steady_clock::time_point time() const { return time_; }  // once set
  const VectorClock& known() const { return known_; }

 private:
  const VectorClock known_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
  std::chrono::steady_clock::time_point time_;
};
using EventPtr = std::shared_ptr<EventState>;

// A FIFO and the thread that works it off, started with the first job.
class Stream {
 public:
  Stream(std::size_t number, c10::Stream handle);

  // A marker is no work that is_idle() would wait for.
  enum class Job { work, marker };
  void push(Job kind, std::function<void()> job);
  void stop();  // once all is done; the next job starts it again
  bool is_idle();

  std::size_t number() const { return number_; }
  const c10::Stream& handle() const { return handle_; }
  const std::string* place() const { return place_; }

  // Guarded by the runtime's lock.
  VectorClock known;
  std::mt19937_64 random;

 private:
  void work();

  const std::size_t number_;  // among the streams of all devices
  const c10::Stream handle_;
  const std::string* place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Job, std::function<void()>>> jobs_;
  std::size_t unfinished_ = 0;  // jobs that are work
  bool stopping_ = false;
  std::thread thread_;
};

// What a graph holds while it is captured and after.
struct Capture {
  Stream* stream = nullptr;
  std::thread::id thread;
  std::vector<TaskPtr> tasks;
};

class Runtime {
 public:
  static Runtime& get();

  Stream& stream(const c10::Stream& handle);
  Stream& current_stream(c10::DeviceIndex device);
  c10::Stream pool_stream(c10::DeviceIndex device);

  // Queues the task, or keeps it for the graph that captures the stream.
  void launch(Stream& stream, TaskPtr task);
  // Queues it in any case.
  void launch_uncaptured(Stream& stream, TaskPtr task);

  EventPtr record(Stream& stream);
  void block(Stream& stream, EventPtr event);

  // The host waits; throws what a task of the device threw since it last did.
  void synchronize(const EventPtr& event, c10::DeviceIndex device);
  void synchronize(Stream& stream);
  void synchronize_device(c10::DeviceIndex device);
  // Whether it is done; if so, the host knows it from now on.
  bool query(const EventPtr& event);
  bool query(Stream& stream);

  // Bytes of `owner` are freed, and reusable once what is queued on the streams `used_on` is done.
  void note_free(const Access& bytes, Stream& owner, const std::vector<EventPtr>& used_on);
  void forget(const Access& bytes);
  void note_host_access(const Access& bytes);
  std::vector<std::string> take_races();

  void begin_capture(const std::shared_ptr<Capture>& capture, Stream& stream);
  void end_capture();
  std::shared_ptr<Capture> capture_of(const Stream& stream);
  // Throws c10::Error if this thread is capturing; `what` it may not do.
  void refuse_while_capturing(const char* what);

  void configure(const Config& config);
  Config config();
  void count(const std::function<void(Counters&)>& change);
  Counters counters();
  void shutdown();
  bool is_down() const { return down_; }

 private:
  Runtime();

  void queue(Stream& stream, const TaskPtr& task);  // under the lock
  void check(Stream& stream, const Task& task);     // under the lock
  bool was_used(const Stream& stream);
  std::chrono::nanoseconds delay_of(Stream& stream, const Task& task);
  void keep_error(c10::DeviceIndex device);
  void rethrow_error(c10::DeviceIndex device);

  std::mutex lock_;  // of order: clocks, the check, and pushes to the streams
  std::array<std::vector<std::unique_ptr<Stream>>, kDevices> streams_;
  std::array<std::size_t, kDevices> next_in_pool_{};
  VectorClock host_;
  RaceCheck races_;
  Config config_;
  std::shared_ptr<Capture> capture_;
  std::atomic<bool> down_{false};

  std::mutex errors_lock_;
  std::array<std::exception_ptr, kDevices> errors_;
  std::mutex counters_lock_;
  Counters counters_;
};

// This thread's current device, and its current stream on a device (device_context.cpp).
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
c10::Stream current_stream_of(c10::DeviceIndex device);

}  // namespace kvcache::testing::sim
