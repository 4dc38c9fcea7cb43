// The clock for traces and deadlines, and the format of its times in messages.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace mosaic {

/// Nanoseconds of CLOCK_MONOTONIC.
inline int64_t monotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Returns a text such as `0.5 s`.
inline std::string formatSeconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(ns) * 1e-9);
  return text;
}

}  // namespace mosaic
