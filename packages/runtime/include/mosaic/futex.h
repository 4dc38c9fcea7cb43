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

/// Sleeps while `word` holds `seen`, at most `timeoutNs` (negative: without limit). May wake for no reason.
inline void futexWait(std::atomic<uint32_t>& word, uint32_t seen, int64_t timeoutNs, bool shared) {
  timespec limit{timeoutNs / 1'000'000'000, timeoutNs % 1'000'000'000};
  const int operation = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  syscall(SYS_futex, &word, operation, seen, timeoutNs < 0 ? nullptr : &limit, nullptr, 0);
}

inline void futexWake(std::atomic<uint32_t>& word, bool shared) {
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// One turn of a loop that spins.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// Wakes one thread, the only one that sleeps here; lies in shared memory. Ringing it while that thread is awake costs
/// one load.
///
/// The caller of ring() has published what it changed by a sequentially consistent store before. The sleeper announces
/// that it is about to sleep, evaluates `ready` once more, then sleeps: one of the two always observes the other.
class alignas(64) Doorbell {
 public:
  void ring() {
    if (!take()) return;
    rings_.fetch_add(1);
    futexWake(rings_, true);
  }

  /// Sleeps until rung or until `timeoutNs` have passed, unless `ready()` is true already.
  template <typename Ready>
  void sleep(int64_t timeoutNs, Ready ready) {
    const uint32_t seen = rings_.load();
    announce();
    if (!ready()) futexWait(rings_, seen, timeoutNs, true);
    withdraw();
  }

  // For a thread that sleeps elsewhere, in `poll`, and those that wake it there.

  /// From here to `withdraw` the first that calls `take` receives true, and wakes the thread.
  void announce() { asleep_.store(1); }
  void withdraw() { asleep_.store(0); }
  bool take() { return asleep_.load() != 0 && asleep_.exchange(0) != 0; }

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> asleep_{0};
};

}  // namespace mosaic
