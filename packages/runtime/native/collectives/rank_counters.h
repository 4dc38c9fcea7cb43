// Counters of a rank, which a monitor samples on the control plane's thread while other threads update them. There is
// no lock; an update costs a few nanoseconds.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "control/control_plane.h"
#include "mosaic/clock.h"

namespace mosaic {

class RankCounters {
 public:
  /// Records the end of a step. Called on the host's thread.
  void markStep(uint64_t reservedBytes, uint64_t peakBytes) {
    const int64_t now = monotonicNs();
    lastStepNs_ = now - lastMarkTimeNs_;
    lastMarkTimeNs_ = now;
    reservedBytes_ = reservedBytes;
    peakBytes_ = peakBytes;
    stepCount_++;
  }

  /// Records that the compute stream begins to wait for a collective. Called on the compute stream's thread.
  void beginWait() { waitStartNs_ = monotonicNs(); }
  void endWait() { waitedNs_ += monotonicNs() - waitStartNs_.exchange(0); }
  /// Called on any thread. Never counts too much: a wait that ends during the call may be missing until the next
  /// sample.
  int64_t waitedNs() const {
    const int64_t finishedWaitNs = waitedNs_, waitStart = waitStartNs_;
    return finishedWaitNs + (waitStart == 0 ? 0 : monotonicNs() - waitStart);
  }

  /// Returns all metrics except those that the engine counts itself.
  Metrics sample() const {
    Metrics metrics;
    const int64_t now = monotonicNs(), lastMarkTimeNs = lastMarkTimeNs_;
    metrics.time = static_cast<uint64_t>(now);
    metrics.steps = stepCount_;
    // The first mark does not end a step, because the program's startup precedes it.
    metrics.step = metrics.steps > 1 ? static_cast<uint64_t>(lastStepNs_) : 0;
    metrics.sinceStep = static_cast<uint64_t>(std::max<int64_t>(0, now - lastMarkTimeNs));
    metrics.reserved = reservedBytes_;
    metrics.peak = peakBytes_;
    metrics.resident = residentBytes();
    return metrics;
  }

 private:
  /// Returns resident memory in bytes, from `size resident …` in pages; 0 on systems without /proc.
  static uint64_t residentBytes() {
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[128] = {};
    const ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    unsigned long long size = 0, residentPages = 0;
    if (length <= 0 || std::sscanf(text, "%llu %llu", &size, &residentPages) != 2) return 0;
    return residentPages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }

  std::atomic<uint64_t> stepCount_{0}, reservedBytes_{0}, peakBytes_{0};
  std::atomic<int64_t> lastStepNs_{0}, lastMarkTimeNs_{monotonicNs()};
  std::atomic<int64_t> waitedNs_{0}, waitStartNs_{0};
};

}  // namespace mosaic
