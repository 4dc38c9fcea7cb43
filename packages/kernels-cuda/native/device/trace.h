// When kernels ran, by events around each.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/context.h"

namespace mosaic::cuda {

/// Ties the GPU's clock to the host's by an event in a stream.
class Timeline {
 public:
  /// Marks the origin in the stream; nothing waits for it. Throws CallError.
  Timeline(std::shared_ptr<const Context> context, CUstream stream);
  /// Nanoseconds of CLOCK_MONOTONIC at which a timed event was reached. It is done, and was recorded in the same stream
  /// after the origin.
  int64_t timeOf(const Event& event) const;

 private:
  Event origin_;
  std::shared_ptr<std::atomic<int64_t>> originTime_;  // written in the stream's order, when it gets there
};

/// What ran: nanoseconds of CLOCK_MONOTONIC.
struct TraceEntry {
  const char* name;
  int64_t start, end;
};

/// Between startTrace and stopTrace. The thread that enqueues adds to it; once stopped it belongs to the watcher's.
class Trace {
 public:
  /// Marks the beginning in the stream. Throws CallError.
  Trace(std::shared_ptr<const Context> context, CUstream stream);

  /// An event before, and one after, what is enqueued between the calls.
  void recordStart(const char* name);
  void recordEnd();

  /// To be called when all of it is done.
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
