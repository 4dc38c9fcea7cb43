#pragma once

#include <cstdint>
#include <ctime>

namespace mosaic::nccl {

/// Nanoseconds of CLOCK_MONOTONIC.
inline int64_t monotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace mosaic::nccl
