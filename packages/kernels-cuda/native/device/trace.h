// When kernels ran, by events around each.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/context.h"

namespace mosaic::cuda {

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
  void before(const char* name);
  void after();

  /// To be called when all of it is done.
  std::vector<TraceEntry> entries() const;

 private:
  struct Timed {
    const char* name;
    std::unique_ptr<Event> start, end;
  };
  std::unique_ptr<Event> mark() const;
  int64_t timeOf(const Event& event) const;

  std::shared_ptr<const Context> context_;
  CUstream stream_;
  std::unique_ptr<Event> begin_;
  std::shared_ptr<std::atomic<int64_t>> beginTime_;  // written in the stream's order, when it gets there
  std::vector<Timed> timed_;
};

}  // namespace mosaic::cuda
