// Memory that is read soon, requested a line at a time between the instructions of a loop that computes. A core has
// some twenty requests under way at most: prefetched in one go, more lines than that make the loop wait as if it read
// them.
#pragma once

#include <cstdint>

#include "simd/inline.h"

namespace mosaic {

inline constexpr int64_t kCacheLineBytes = 64;

/// `count` stretches of `bytes`, `stride` bytes apart.
struct UpcomingReads {
  const void* data;
  int64_t count, stride, bytes;
};

inline __attribute__((always_inline)) int64_t countLines(const UpcomingReads& reads) {
  return reads.count * ((reads.bytes + kCacheLineBytes - 1) / kCacheLineBytes);
}

/// Prefetches such stretches into the L2 cache, a line with each step; after the last line that one again.
class Prefetch {
 public:
  __attribute__((always_inline)) explicit Prefetch(const UpcomingReads& reads)
      : line_(static_cast<const char*>(reads.data)),
        end_(line_ + reads.bytes),
        last_(reads.count > 0 ? line_ + (reads.count - 1) * reads.stride + reads.bytes - 1 : line_),
        stride_(reads.stride),
        gap_(reads.stride - (reads.bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes) {}

  __attribute__((always_inline)) void step() {
    __builtin_prefetch(line_, 0, 2);
    line_ += kCacheLineBytes;
    const bool isStretchDone = line_ >= end_;
    line_ += isStretchDone ? gap_ : 0;
    end_ += isStretchDone ? stride_ : 0;
    line_ = line_ < last_ ? line_ : last_;
  }

 private:
  const char *line_, *end_, *last_;
  const int64_t stride_, gap_;
};

struct PrefetchPair {
  Prefetch first, second;
  __attribute__((always_inline)) void step() {
    first.step();
    second.step();
  }
};

/// Lines `stride` bytes apart: as little state as there can be beside a tile that takes most registers.
struct LineSweep {
  const char* line;
  int64_t stride;
  __attribute__((always_inline)) void step() {
    __builtin_prefetch(line, 0, 2);
    line += stride;
  }
};

/// Prefetches stretches of memory, part by part: in order where they lie side by side, else line by line of all.
class TilePrefetch {
 public:
  __attribute__((always_inline)) explicit TilePrefetch(const UpcomingReads& reads)
      : data_(static_cast<const char*>(reads.data)),
        count_(reads.count),
        stride_(reads.stride),
        lines_((reads.bytes + kCacheLineBytes - 1) / kCacheLineBytes),
        isDense_(reads.bytes == reads.stride) {}

  /// The next lines, as many as the tile takes steps; when all are done, one of them again and again.
  __attribute__((always_inline)) LineSweep sweep(int64_t steps) {
    const int64_t first = steps_;
    steps_ += steps;
    if (first >= count_ * lines_) return {data_, 0};
    if (isDense_) return {data_ + first * kCacheLineBytes, kCacheLineBytes};
    return {data_ + first / count_ * kCacheLineBytes + first % count_ * stride_, stride_};
  }

 private:
  const char* data_;
  int64_t count_, stride_, lines_;
  bool isDense_;
  int64_t steps_ = 0;
};

struct NoPrefetch {
  __attribute__((always_inline)) void step() {}
  __attribute__((always_inline)) NoPrefetch sweep(int64_t) { return {}; }
};

}  // namespace mosaic
