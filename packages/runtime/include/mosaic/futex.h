// Sleeping and waking across threads and, when `shared`, across processes that map the same page.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace mosaic {

/// Sleeps while `word` holds `expected`, at most `timeoutNs` (negative: without limit). May wake for no reason.
inline void futexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeoutNs, bool isShared) {
  timespec timeout{timeoutNs / 1'000'000'000, timeoutNs % 1'000'000'000};
  const int operation = isShared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  syscall(SYS_futex, &word, operation, expected, timeoutNs < 0 ? nullptr : &timeout, nullptr, 0);
}

inline void futexWake(std::atomic<uint32_t>& word, bool isShared) {
  syscall(SYS_futex, &word, isShared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// One turn of a loop that spins.
inline void cpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// Wakes one thread, the only one that sleeps here; lies in shared memory. Ringing it while that thread is awake costs
/// one load.
///
/// The caller of ring() has published what it changed by a sequentially consistent store before, or under a mutex
/// that `ready` takes, too. The sleeper announces that it is about to sleep, evaluates `ready` once more, then sleeps:
/// one of the two always observes the other.
class alignas(64) Doorbell {
  // The system compares the word itself, and other processes use it.
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t));

 public:
  void ring() {
    if (!clearIfAsleep()) return;
    ringCount_.fetch_add(1);
    futexWake(ringCount_, true);
  }

  /// Sleeps until rung or until `timeoutNs` have passed, unless `ready()` is true already.
  template <typename Ready>
  void sleep(int64_t timeoutNs, Ready ready) {
    const uint32_t expected = ringCount_.load();
    setAsleep();
    if (!ready()) futexWait(ringCount_, expected, timeoutNs, true);
    clearAsleep();
  }

  // For a thread that sleeps elsewhere, in `poll`, and those that wake it there.

  /// From here to `clearAsleep` the first that calls `clearIfAsleep` receives true, and wakes the thread.
  void setAsleep() { isAsleep_.store(1); }
  void clearAsleep() { isAsleep_.store(0); }
  bool clearIfAsleep() { return isAsleep_.load() != 0 && isAsleep_.exchange(0) != 0; }

 private:
  Word ringCount_{0};
  Word isAsleep_{0};
};

}  // namespace mosaic
