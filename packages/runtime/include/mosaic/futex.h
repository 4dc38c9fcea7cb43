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

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Wakes one thread, the only one that sleeps here; lies in shared memory. Ringing it while that thread is awake costs
/// one load.
///
/// Whoever rings has published what it changed by a sequentially consistent store before. The sleeper announces that it
/// is about to sleep, evaluates `ready` once more, then sleeps: one of the two always observes the other.
class alignas(64) Doorbell {
 public:
  void ring() {
    if (asleep_.load() == 0 || asleep_.exchange(0) == 0) return;
    rings_.fetch_add(1);
    futexWake(rings_, true);
  }

  /// Sleeps until rung or until `timeoutNs` have passed, unless `ready()` is true already.
  template <typename Ready>
  void sleep(int64_t timeoutNs, Ready ready) {
    const uint32_t seen = rings_.load();
    asleep_.store(1);
    if (!ready()) futexWait(rings_, seen, timeoutNs, true);
    asleep_.store(0);
  }

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> asleep_{0};
};

}  // namespace mosaic
