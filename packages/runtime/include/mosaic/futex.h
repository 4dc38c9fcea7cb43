// Sleeping and waking across threads and, if shared, across processes that map the same page.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace mosaic {

/// Sleeps while `word` holds `expected`, at most `timeoutNs` (negative: without limit). May wake spuriously.
inline void futexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeoutNs, bool isShared) {
  timespec timeout{timeoutNs / 1'000'000'000, timeoutNs % 1'000'000'000};
  const int operation = isShared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  syscall(SYS_futex, &word, operation, expected, timeoutNs < 0 ? nullptr : &timeout, nullptr, 0);
}

inline void futexWake(std::atomic<uint32_t>& word, bool isShared) {
  syscall(SYS_futex, &word, isShared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// One iteration of a spin loop.
inline void cpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// Wakes one thread, the only one that sleeps on this doorbell. It may be in shared memory. Ringing it while that
/// thread is awake costs one load.
///
/// Before it calls ring(), the caller must publish its changes by a sequentially consistent store, or under a mutex
/// that `ready` also locks. The sleeper announces that it is about to sleep, evaluates `ready` once more, then sleeps.
/// So one of the two always observes the other.
class alignas(64) Doorbell {
  // The kernel compares the word's bytes, and other processes access it.
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t));

 public:
  void ring() {
    if (!clearIfAsleep()) return;
    ringCount_.fetch_add(1);
    futexWake(ringCount_, true);
  }

  /// Sleeps until rung or until `timeoutNs` have passed. Returns at once if `ready()` is already true.
  template <typename Ready>
  void sleep(int64_t timeoutNs, Ready ready) {
    const uint32_t expected = ringCount_.load();
    setAsleep();
    if (!ready()) futexWait(ringCount_, expected, timeoutNs, true);
    clearAsleep();
  }

  // The functions below are for a thread that sleeps in `poll` instead, and for threads that wake it there.

  /// From this call to `clearAsleep`, the first call of `clearIfAsleep` returns true; its caller must wake the thread.
  void setAsleep() { isAsleep_.store(1); }
  void clearAsleep() { isAsleep_.store(0); }
  bool clearIfAsleep() { return isAsleep_.load() != 0 && isAsleep_.exchange(0) != 0; }

 private:
  Word ringCount_{0};
  Word isAsleep_{0};
};

}  // namespace mosaic
