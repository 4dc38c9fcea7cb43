// Software prefetch of memory that is read soon, one line at a time between the instructions of a compute loop. A core
// can have about twenty requests in flight; issuing more at once makes the loop wait as if it read the lines.
#pragma once

#include <cstdint>

#include "simd/inline.h"
#include "simd/integers.h"

namespace mosaic {

inline constexpr int64_t kCacheLineBytes = 64;

/// `count` ranges of `bytes`, whose starts are `stride` bytes apart.
struct UpcomingReads {
  const void* data;
  int64_t count, stride, bytes;
};

inline __attribute__((always_inline)) int64_t countLines(const UpcomingReads& reads) {
  return reads.count * ceilDiv(reads.bytes, kCacheLineBytes);
}

/// Prefetches ranges into the L2 cache in steps of `stepBytes`, at most a line; after the last line it repeats that
/// line. With smaller steps, several prefetch the same line, so that the lines are spread evenly over more steps. A
/// counter of steps would need a branch and registers of the loop.
class PacedPrefetch {
 public:
  __attribute__((always_inline)) PacedPrefetch(const UpcomingReads& reads, int64_t stepBytes)
      : next_(static_cast<const char*>(reads.data)),
        end_(next_ + reads.bytes),
        last_(reads.count > 0 ? next_ + (reads.count - 1) * reads.stride + reads.bytes - 1 : next_),
        stride_(reads.stride),
        gap_(reads.stride - reads.bytes),
        stepBytes_(stepBytes) {}

  __attribute__((always_inline)) void step() { step(stepBytes_); }
  __attribute__((always_inline)) void stepLines(int32_t lines) {
    if (lines == 0) return;
    const int64_t bytes = lines * kCacheLineBytes;
    if (end_ - next_ > bytes) {
      for (int64_t offset = 0; offset < bytes; offset += kCacheLineBytes) __builtin_prefetch(next_ + offset, 0, 2);
      next_ += bytes;
    } else {
      for (int32_t i = 0; i < lines; ++i) step(kCacheLineBytes);
    }
  }

 private:
  __attribute__((always_inline)) void step(int64_t bytes) {
    __builtin_prefetch(next_, 0, 2);
    next_ += bytes;
    const bool isRangeDone = next_ >= end_;
    next_ = isRangeDone ? end_ + gap_ : next_;
    end_ += isRangeDone ? stride_ : 0;
    next_ = next_ < last_ ? next_ : last_;
  }

  const char *next_, *end_, *last_;
  const int64_t stride_, gap_, stepBytes_;
};

/// Prefetches lines `stride` bytes apart. Its state is minimal, because the tile beside it takes most registers.
struct LineSweep {
  const char* line;
  int64_t stride;
  __attribute__((always_inline)) void step() {
    __builtin_prefetch(line, 0, 2);
    line += stride;
  }
};

/// Prefetches lines like `panel`, and into the L1 cache the lines of columns `stride` bytes apart, which the hardware
/// prefetcher does not detect.
struct ColumnSweep {
  LineSweep panel;
  const char* column;
  int64_t stride;
  __attribute__((always_inline)) void step() {
    panel.step();
    __builtin_prefetch(column, 0, 3);
    column += stride;
  }
};

/// Prefetches ranges `stride` bytes apart in steps of `stepBytes`, at most a line, and after the last range what
/// follows it. Like `PacedPrefetch`, with less state.
struct RangeSweep {
  const char* range;
  int64_t offset, bytes, stride, stepBytes;
  __attribute__((always_inline)) void step() {
    __builtin_prefetch(range + offset, 0, 2);
    offset += stepBytes;
    const bool isRangeDone = offset >= bytes;
    offset = isRangeDone ? 0 : offset;
    range += isRangeDone ? stride : 0;
  }
};

/// Prefetches rows that are read 4 bytes per step, each at its next line: eight rows in eight steps, half a line of
/// each.
struct RowSweep {
  const char* row;
  int64_t stride, offset = 0;
  __attribute__((always_inline)) void step() {
    __builtin_prefetch(row + offset, 0, 2);
    row += 4;
    offset += stride;
    offset = offset == 8 * stride ? 0 : offset;
  }
};

struct SweepPair {
  RangeSweep ranges;
  RowSweep rows;
  __attribute__((always_inline)) void step() {
    ranges.step();
    rows.step();
  }
};

/// Prefetches ranges of memory in parts: evenly over `steps` steps if the ranges are contiguous, else the first line of
/// every range, then the second, and so on.
class TilePrefetch {
 public:
  __attribute__((always_inline)) TilePrefetch(const UpcomingReads& reads, int64_t steps)
      : data_(static_cast<const char*>(reads.data)),
        count_(reads.count),
        stride_(reads.stride),
        lines_(ceilDiv(reads.bytes, kCacheLineBytes)),
        isDense_(reads.bytes == reads.stride) {
    stepBytes_ = minOf(ceilDiv(count_ * reads.bytes, steps), kCacheLineBytes);
  }

  /// Returns the next `steps` lines, one per step of a tile; once all lines are done, a single line repeatedly.
  __attribute__((always_inline)) LineSweep sweep(int64_t steps) {
    const int64_t first = steps_;
    steps_ += steps;
    if (isDense_) {
      const bool isDone = first * stepBytes_ >= count_ * stride_;
      return isDone ? LineSweep{data_, 0} : LineSweep{data_ + first * stepBytes_, stepBytes_};
    }
    if (first >= count_ * lines_) return {data_, 0};
    return {data_ + first / count_ * kCacheLineBytes + first % count_ * stride_, stride_};
  }

 private:
  const char* data_;
  int64_t count_, stride_, lines_;
  bool isDense_;
  int64_t stepBytes_, steps_ = 0;
};

/// Prefetches the rows of several matrices into the L2 cache, the same rows of each.
struct RowPrefetch {
  struct Matrix {
    const char* row;  // the next row
    int64_t stride, bytes;
  };
  Matrix matrices[7];  // without bytes: none
  int64_t remainingRows;

  /// Prefetches the next `count` rows.
  __attribute__((always_inline)) void step(int32_t count) {
    for (; count > 0 && remainingRows > 0; --count, --remainingRows) {
      for (Matrix& matrix : matrices) {
        for (int64_t offset = 0; offset < matrix.bytes; offset += kCacheLineBytes) {
          __builtin_prefetch(matrix.row + offset, 0, 2);
        }
        matrix.row += matrix.stride;
      }
    }
  }
};

struct NoPrefetch {
  __attribute__((always_inline)) void step() {}
  __attribute__((always_inline)) NoPrefetch sweep(int64_t) { return {}; }
};

}  // namespace mosaic
