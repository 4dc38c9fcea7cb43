// Waiting without sleeping.
#pragma once

#include <sched.h>

#include <cstdint>

#include "mosaic/clock.h"
#include "mosaic/futex.h"

namespace mosaic {

/// Spins until `ready()` or for about `maxNs` nanoseconds; reports whether it is ready.
template <class Ready>
bool spinFor(int64_t maxNs, Ready ready) {
  const int64_t start = monotonicNs();
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      cpuRelax();
    }
  } while (monotonicNs() - start < maxNs);
  return ready();
}

/// Waits for something that another running thread will do soon; lets others run when the machine is oversubscribed.
template <class Ready>
void spinUntil(Ready ready) {
  while (!spinFor(20'000, ready)) sched_yield();
}

}  // namespace mosaic
