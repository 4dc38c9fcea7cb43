// Threads other than the host's.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace mosaic {

/// Blocks all signals for the calling thread, and for threads that it starts, until it is destroyed.
class ScopedSignalBlock {
 public:
  ScopedSignalBlock() {
    sigset_t allSignals;
    sigfillset(&allSignals);
    pthread_sigmask(SIG_SETMASK, &allSignals, &previousMask_);
  }
  ~ScopedSignalBlock() { pthread_sigmask(SIG_SETMASK, &previousMask_, nullptr); }
  ScopedSignalBlock(const ScopedSignalBlock&) = delete;
  ScopedSignalBlock& operator=(const ScopedSignalBlock&) = delete;

 private:
  sigset_t previousMask_;
};

/// Starts a thread that blocks all signals, so that the host's main thread receives them. Throws std::system_error if
/// the system cannot create it.
template <typename Body>
std::thread startThread(const char* name, Body body) {
  const ScopedSignalBlock signalBlock;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace mosaic
