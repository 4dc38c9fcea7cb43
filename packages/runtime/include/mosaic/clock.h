// The clock of traces and deadlines.
#pragma once

#include <time.h>

#include <cstdint>

namespace mosaic {

/// Nanoseconds of CLOCK_MONOTONIC.
inline int64_t monotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace mosaic
