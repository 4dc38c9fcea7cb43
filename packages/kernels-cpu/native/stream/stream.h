// The stream: a thread that runs works in the order of submission. It makes a CPU behave like a small GPU.
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

// How kernels report failures, and how these become the stream's failure.

/// Converts the exception in flight into a failure. Must be called from a catch block.
void fillFailureFromException(MosaicFailure& failure);

/// An executed work, with its CLOCK_MONOTONIC times in nanoseconds. `name` has static lifetime.
struct TraceEntry {
  const char* name;
  int64_t start, end;
};

/// The address of a stream, as a `MosaicStream *`, is the handle that other packages use for a CPU device.
///
/// Errors are sticky: later works receive the first one as `upstream` and must not access their operands. Works named
/// "" are markers, not computation, and are not traced.
class Stream : public MosaicStream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Runs the stream on the calling thread; returns once the stream is closed and all submitted work has run.
  void run();

  /// May be called from any thread. After `close`, the work runs at once, on the caller's thread, with ClosedError as
  /// its upstream.
  void append(const MosaicWork& work);

  /// Returns the number of works submitted so far, which is the position of a fence.
  uint64_t position();
  /// Blocks until the works before `position` are done. Returns the failure that one of them caused, or null.
  const MosaicFailure* waitFor(uint64_t position);

  /// Returns the first failure, or null. May be called from any thread.
  const MosaicFailure* failure() const { return hasFailed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }

  /// Accepts no more work. Work that was submitted still runs.
  void close();
  /// Closes the stream, and fails work that was submitted but has not started.
  void closeAndFailPending();

  /// May be called only by a work on this stream.
  void setTracing(bool isEnabled) { isTracing_ = isEnabled; }
  std::vector<TraceEntry> takeTrace() { return std::exchange(trace_, {}); }

 private:
  bool waitForBatch(std::vector<MosaicWork>& batch);
  void spinUntilWork();
  void execute(const MosaicWork& work);
  void fail(const char* name, const MosaicFailure& failure);

  std::mutex mutex_;
  std::condition_variable workCondition_;      // work is available, or the stream is closed
  std::condition_variable progressCondition_;  // doneCount_ advanced while a thread waits for it
  std::vector<MosaicWork> queue_;          // under mutex_
  uint64_t submittedCount_ = 0;            // under mutex_
  bool isParked_ = false;                  // under mutex_
  bool isClosed_ = false;                  // under mutex_
  std::atomic<bool> hasWork_{false};      // queue_ is not empty or the stream is closed; polled by `spinUntilWork`
  std::atomic<bool> isAbandoned_{false};
  std::atomic<uint64_t> doneCount_{0};
  std::atomic<int> waiterCount_{0};  // threads in `waitFor`
  std::atomic<bool> hasFailed_{false};
  MosaicFailure failure_{};                // written once, before hasFailed_
  uint64_t failedPosition_ = 0;            // written once, before hasFailed_
  bool isTracing_ = false;                 // used only by the stream's thread
  std::vector<TraceEntry> trace_;          // used only by the stream's thread
};

/// Submits a call of `(*callable)()`, which may throw; it is skipped once the stream has failed.
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
  // The stream now owns the callable, and may already have destroyed it.
  static_cast<void>(callable.release());
}

/// Submits a call of `body()`, like `enqueueOwned`.
template <class Body>
void enqueue(Stream& stream, const char* name, Body&& body) {
  using Callable = std::decay_t<Body>;
  enqueueOwned(stream, name, std::unique_ptr<Callable>(new Callable(std::forward<Body>(body))));
}

/// Submits a call of `body(upstreamFailure)` that runs even on a failed stream, for example to notify waiting threads.
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
