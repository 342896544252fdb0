#include "kvcache/generation/text_stream.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "kvcache/core/errors.h"
#include "kvcache/generation/text_streamer.h"

namespace kvcache {
namespace {

// Thrown through generate() where nobody wants the rest.
struct Stopped {};

}  // namespace

// What the two threads share. The text's own thread is joined before any of it goes.
class TextStream::State {
 public:
  State(MakeRunningText text, Call call)
      : streamer_(std::move(text), [this](std::string_view piece) { hand_over(piece); }),
        thread_([this, call = std::move(call)] { run(call); }) {}

  ~State() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    thread_.join();
  }

  std::optional<std::string> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ || !pieces_.empty(); });
    if (!pieces_.empty()) {
      std::string piece = std::move(pieces_.front());
      pieces_.pop_front();
      return piece;
    }
    if (error_) std::rethrow_exception(error_);
    return std::nullopt;
  }

  Output output() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    pieces_.clear();
    if (error_) std::rethrow_exception(error_);
    check_state(output_.has_value(), "the stream's output was taken before");
    Output output = std::move(*output_);
    output_.reset();
    return output;
  }

 private:
  // On the text's thread. Looks at every token whether there is someone to go on for.
  class Watch final : public Streamer {
   public:
    explicit Watch(State& state) : state_(state) {}

    void begin() override { state_.streamer_.begin(); }
    void put(const at::Tensor& tokens) override {
      {
        const std::lock_guard lock(state_.mutex_);
        if (state_.stopped_) throw Stopped{};
      }
      state_.streamer_.put(tokens);
    }
    void end() override { state_.streamer_.end(); }

   private:
    State& state_;
  };

  void run(const Call& call) noexcept {
    Watch watch(*this);
    std::optional<Output> output;
    std::exception_ptr error;
    try {
      output = call(watch);
    } catch (const Stopped&) {
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    output_ = std::move(output);
    error_ = error;
    done_ = true;
    changed_.notify_all();
  }

  void hand_over(std::string_view piece) {
    const std::lock_guard lock(mutex_);
    pieces_.emplace_back(piece);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  std::optional<Output> output_;
  std::exception_ptr error_;
  bool done_ = false;
  bool stopped_ = false;
  TextStreamer streamer_;
  std::thread thread_;  // the last: it uses the others
};

TextStream::TextStream(MakeRunningText text, Call call) {
  check_value(text != nullptr && call != nullptr,
              "a TextStream needs a function that begins a text and one that makes it");
  state_ = std::make_unique<State>(std::move(text), std::move(call));
}

TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

std::optional<std::string> TextStream::next() { return state_->next(); }

Output TextStream::output() { return state_->output(); }

}  // namespace kvcache
