// Waiting without sleeping.
#pragma once

#include <sched.h>

#include <cstdint>

#include "mosaic/clock.h"
#include "mosaic/futex.h"

namespace mosaic {

/// Spins until `isReady()` or for about `maxNs` nanoseconds; returns whether it is ready.
template <class Ready>
bool spinFor(int64_t maxNs, Ready isReady) {
  const int64_t start = monotonicNs();
  do {
    for (int i = 0; i < 32; ++i) {
      if (isReady()) return true;
      cpuRelax();
    }
  } while (monotonicNs() - start < maxNs);
  return isReady();
}

/// Waits for something that another running thread will do soon; yields the core if the machine is oversubscribed.
template <class Ready>
void spinUntil(Ready isReady) {
  while (!spinFor(20'000, isReady)) sched_yield();
}

}  // namespace mosaic
