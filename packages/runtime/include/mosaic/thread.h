// Threads beside the host's.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace mosaic {

/// While it lives, the calling thread, and threads that it starts, receive no signals.
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

/// A thread that leaves signals to the host's main thread. Throws std::system_error if the system gives none.
template <typename Body>
std::thread startThread(const char* name, Body body) {
  const ScopedSignalBlock signalBlock;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace mosaic
