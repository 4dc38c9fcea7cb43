// What a monitor samples of a rank, on the control plane's thread, while other threads count: no lock, a few
// nanoseconds for each count.
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
  /// On the host's thread: a step is over.
  void markStep(uint64_t reservedBytes, uint64_t peakBytes) {
    const int64_t now = monotonicNs();
    lastStepNs_ = now - lastMarkTimeNs_;
    lastMarkTimeNs_ = now;
    reservedBytes_ = reservedBytes;
    peakBytes_ = peakBytes;
    stepCount_++;
  }

  /// On the compute stream's thread: it waits for a collective.
  void beginWait() { waitStartNs_ = monotonicNs(); }
  void endWait() { waitedNs_ += monotonicNs() - waitStartNs_.exchange(0); }
  /// Any thread. Never too much: what ends meanwhile is missing, until the next sample.
  int64_t waitedNs() const {
    const int64_t finishedWaitNs = waitedNs_, waitStart = waitStartNs_;
    return finishedWaitNs + (waitStart == 0 ? 0 : monotonicNs() - waitStart);
  }

  /// All but what the engine counts itself.
  Metrics sample() const {
    Metrics metrics;
    const int64_t now = monotonicNs(), lastMarkTimeNs = lastMarkTimeNs_;
    metrics.time = static_cast<uint64_t>(now);
    metrics.steps = stepCount_;
    // The first mark ends no step: what came before it is the program's start.
    metrics.step = metrics.steps > 1 ? static_cast<uint64_t>(lastStepNs_) : 0;
    metrics.sinceStep = static_cast<uint64_t>(std::max<int64_t>(0, now - lastMarkTimeNs));
    metrics.reserved = reservedBytes_;
    metrics.peak = peakBytes_;
    metrics.resident = residentBytes();
    return metrics;
  }

 private:
  /// `size resident …` in pages; 0 on systems without /proc.
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
