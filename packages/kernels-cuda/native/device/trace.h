// Timing of kernels, by events around each.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/context.h"

namespace mosaic::cuda {

/// Relates the GPU's clock to the host's by an event in a stream.
class Timeline {
 public:
  /// Records the origin in the stream; nothing waits for it. Throws CallError.
  Timeline(std::shared_ptr<const Context> context, CUstream stream);
  /// Returns the CLOCK_MONOTONIC nanoseconds at which a timed event was reached. The event must be complete, and
  /// recorded in the same stream after the origin.
  int64_t timeOf(const Event& event) const;

 private:
  Event origin_;
  std::shared_ptr<std::atomic<int64_t>> originTime_;  // written in stream order
};

/// A traced operation, with CLOCK_MONOTONIC times in nanoseconds.
struct TraceEntry {
  const char* name;
  int64_t start, end;
};

/// The trace between startTrace and stopTrace. The enqueueing thread adds to it; after it is stopped, the watcher's
/// thread owns it.
class Trace {
 public:
  /// Records the origin in the stream. Throws CallError.
  Trace(std::shared_ptr<const Context> context, CUstream stream);

  /// Record an event before and after the operations enqueued between the two calls.
  void recordStart(const char* name);
  void recordEnd();

  /// Returns the entries. Must be called after all traced work is done.
  std::vector<TraceEntry> entries() const;

 private:
  struct TimedKernel {
    const char* name;
    std::unique_ptr<Event> start, end;
  };
  std::unique_ptr<Event> recordEvent() const;

  std::shared_ptr<const Context> context_;
  CUstream stream_;
  Timeline timeline_;
  std::vector<TimedKernel> timedKernels_;
};

}  // namespace mosaic::cuda
