#include <c10/util/Exception.h>

#include "tests/support/sim/device_memory.h"
#include "tests/support/sim/runtime.h"
#include "tests/support/sim/sim.h"

namespace kvcache::testing::sim {

Graph::Graph() : capture_(std::make_shared<Capture>()) {}

Graph::~Graph() {
  Runtime& runtime = Runtime::get();
  if (capture_->stream != nullptr && runtime.capture_of(*capture_->stream) == capture_) {
    runtime.end_capture();
  }
  capture_->tasks.clear();
  device_memory().release_graph(capture_.get());
}

void Graph::capture_begin() {
  TORCH_CHECK(capture_->stream == nullptr, "the graph was captured before");
  Runtime& runtime = Runtime::get();
  runtime.begin_capture(capture_, runtime.current_stream(current_device()));
}

void Graph::capture_end() {
  TORCH_CHECK(capture_->stream != nullptr, "the graph is not being captured");
  Runtime::get().end_capture();
}

void Graph::replay() {
  TORCH_CHECK(capture_->stream != nullptr, "the graph was not captured");
  Runtime& runtime = Runtime::get();
  Stream& stream = runtime.current_stream(capture_->stream->handle().device_index());
  for (const TaskPtr& task : capture_->tasks) runtime.launch(stream, task);
}

std::int64_t Graph::size() const { return std::int64_t(capture_->tasks.size()); }

}  // namespace kvcache::testing::sim
