// The stream: a thread that runs works in the order in which they came. What makes a CPU a small GPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mosaic/failure.h"
#include "mosaic/stream.h"

namespace mosaic {

// How kernels report that they failed, and how that becomes the stream's failure.

/// Turns the exception in flight into a failure; call from a catch block.
void fillFailureFromException(MosaicFailure& failure);

/// What ran, by CLOCK_MONOTONIC nanoseconds. `name` has static lifetime.
struct TraceEntry {
  const char* name;
  int64_t start, end;
};

/// Its address, as a `MosaicStream *`, is what other packages know of a CPU device.
///
/// Errors are sticky: later works see the first one as `upstream` and must not touch their operands. Works named "" are
/// marks, not computation: they leave no trace.
class Stream : public MosaicStream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// The body of the stream's thread: returns once the stream is closed and all that was submitted has run.
  void run();

  /// From any thread. After `close` the work is run at once, on the caller's thread, with ClosedError as its upstream.
  void append(const MosaicWork& work);

  /// Works submitted so far: the position of a fence.
  uint64_t position();
  /// Blocks until the works before `position` are done. Returns the failure that one of them caused, or null.
  const MosaicFailure* waitFor(uint64_t position);

  /// The first failure, or null. From any thread.
  const MosaicFailure* failure() const { return hasFailed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }

  /// No more work is taken. What was submitted still runs.
  void close();
  /// Closes, and fails what was submitted but has not begun.
  void closeAndFailPending();

  /// Only from a work on this stream.
  void setTracing(bool isEnabled) { isTracing_ = isEnabled; }
  std::vector<TraceEntry> takeTrace() { return std::exchange(trace_, {}); }

 private:
  bool waitForBatch(std::vector<MosaicWork>& batch);
  void spinUntilWork();
  void execute(const MosaicWork& work);
  void fail(const char* name, const MosaicFailure& failure);

  std::mutex mutex_;
  std::condition_variable workCondition_;      // something to take, or closed
  std::condition_variable progressCondition_;  // doneCount_ advanced while a thread waits for it
  std::vector<MosaicWork> queue_;          // under mutex_
  uint64_t submittedCount_ = 0;            // under mutex_
  bool isParked_ = false;                  // under mutex_
  bool isClosed_ = false;                  // under mutex_
  std::atomic<bool> hasWork_{false};      // queue_ is not empty or the stream is closed; what `spinUntilWork` polls
  std::atomic<bool> isAbandoned_{false};
  std::atomic<uint64_t> doneCount_{0};
  std::atomic<int> waiterCount_{0};  // in `waitFor`
  std::atomic<bool> hasFailed_{false};
  MosaicFailure failure_{};                // written once, before hasFailed_
  uint64_t failedPosition_ = 0;            // written once, before hasFailed_
  bool isTracing_ = false;                 // of the stream's thread
  std::vector<TraceEntry> trace_;          // of the stream's thread
};

/// Submits a call of `(*callable)()`, which may throw, and which is skipped once the stream has failed.
template <class Callable>
void enqueueOwned(Stream& stream, const char* name, std::unique_ptr<Callable> callable) {
  auto run = [](void* arg, const MosaicFailure* upstreamFailure, MosaicFailure* failure) -> int {
    if (upstreamFailure) return 0;
    try {
      (*static_cast<Callable*>(arg))();
      return 0;
    } catch (...) {
      fillFailureFromException(*failure);
      return 1;
    }
  };
  auto drop = [](void* arg) { delete static_cast<Callable*>(arg); };
  stream.append({name, run, drop, callable.get()});
  // The stream has it now, and may have dropped it.
  static_cast<void>(callable.release());
}

/// The same of `body()`.
template <class Body>
void enqueue(Stream& stream, const char* name, Body&& body) {
  using Callable = std::decay_t<Body>;
  enqueueOwned(stream, name, std::unique_ptr<Callable>(new Callable(std::forward<Body>(body))));
}

/// Submits a call of `body(upstreamFailure)` that happens even on a failed stream: to notify waiting threads.
template <class Body>
void enqueueEvenIfFailed(Stream& stream, const char* name, Body&& body) {
  using Callable = std::decay_t<Body>;
  auto run = [](void* arg, const MosaicFailure* upstreamFailure, MosaicFailure*) -> int {
    (*static_cast<Callable*>(arg))(upstreamFailure);
    return 0;
  };
  auto drop = [](void* arg) { delete static_cast<Callable*>(arg); };
  std::unique_ptr<Callable> callable(new Callable(std::forward<Body>(body)));
  stream.append({name, run, drop, callable.get()});
  static_cast<void>(callable.release());
}

}  // namespace mosaic
