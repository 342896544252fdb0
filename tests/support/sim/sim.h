// A simulated accelerator: two devices "sim:0" and "sim:1" under LibTorch's PrivateUse1, whose
// streams are threads, whose memory the host cannot read, and whose work is checked for order. A
// program that links kvcache_sim has it, with a main() that fails tests for races they leave.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvcache::testing::sim {

inline constexpr c10::DeviceIndex kDevices = 2;

inline at::Device device(c10::DeviceIndex index = 0) { return {c10::kPrivateUse1, index}; }

struct Config {
  // Each kernel (copy) starts after a random delay of up to so long, drawn from `seed`.
  std::chrono::microseconds kernel_delay{0};
  std::chrono::microseconds copy_delay{0};
  double copy_gbps = 0;           // of copies between host and device, GB/s; 0: as fast as can be
  std::uint64_t seed = 1;         // of the delays
  std::int64_t memory_limit = 0;  // bytes active at once on a device; 0: 16 GiB
  bool poison = true;             // fresh and freed memory holds bytes 0xFF (NaN, -1)
  bool detect_races = true;
};

struct Counters {
  std::int64_t launches = 0;          // kernels queued
  std::int64_t synchronous_ops = 0;   // operators that waited, as their result is on the host
  std::int64_t host_to_device = 0;    // copies
  std::int64_t device_to_host = 0;    // copies
  std::int64_t device_to_device = 0;  // copies, within a device too
  std::int64_t bytes_host_to_device = 0;
  std::int64_t bytes_device_to_host = 0;
  std::int64_t async_copies = 0;          // between host and device, the host going on meanwhile
  std::int64_t pageable_nonblocking = 0;  // asked to go on, but the host memory is not pinned
  std::int64_t synchronizations = 0;      // the host waited for a stream, an event or a device
};

// Registers the devices. Called once, before anything of LibTorch is used from several threads.
void install();

// Waits for all work, then sets the behaviour of both devices; counters start anew.
void configure(const Config& config);

Counters counters();
void reset_counters();

// Conflicting accesses that no event or synchronisation puts in order, since the last call, e.g.
// "read by aten::add.out on stream 0 of sim:0 is not ordered after write by copy to device on
// stream 3 of sim:0". Ranges are bounding intervals: interleaved strided views count as touching.
std::vector<std::string> take_races();

// What the check cannot see by itself: the host reads or writes pinned memory now.
enum class HostAccess { read, write };
void declare_host_access(const at::Tensor& pinned, HostAccess access);

// Waits for all streams; throws what a task threw since the last synchronisation.
void synchronize();

// Waits for all work and ends the streams' threads. Before main() returns.
void shutdown();

// Work of one stream, kept instead of run, to be queued again at the same addresses. Between
// capture_begin and capture_end the capturing thread may not wait for devices, read from them, copy
// from or to pageable memory, or use events of the captured stream: c10::Error.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void capture_begin();  // of the current device's current stream
  void capture_end();
  void replay();  // on the current stream of the device that was captured

  std::int64_t size() const;  // tasks of a replay

 private:
  std::shared_ptr<struct Capture> capture_;
};

}  // namespace kvcache::testing::sim
