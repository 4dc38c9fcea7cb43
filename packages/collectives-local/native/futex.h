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

/// Wakes one thread, which is the only one that sleeps here. Ringing it while it is awake costs one load.
///
/// Whoever rings has published its news by a sequentially consistent store before; the sleeper says that it is about
/// to sleep, looks once more for news, then sleeps. One of the two always sees the other.
class alignas(64) Doorbell {
 public:
  void ring() {
    if (asleep_.load() == 0 || asleep_.exchange(0) == 0) return;
    bell_.fetch_add(1);
    futexWake(bell_, true);
  }

  /// Sleeps until rung or until `timeoutNs` have passed, unless `news()` is true already.
  template <typename News>
  void sleep(int64_t timeoutNs, News news) {
    const uint32_t seen = bell_.load();
    asleep_.store(1);
    if (!news()) futexWait(bell_, seen, timeoutNs, true);
    asleep_.store(0);
  }

 private:
  std::atomic<uint32_t> bell_{0};
  std::atomic<uint32_t> asleep_{0};
};

}  // namespace mosaic
