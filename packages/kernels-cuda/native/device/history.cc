#include "device/history.h"

#include <algorithm>

namespace mosaic::cuda {

void History::note(const char* kernel) {
  const std::lock_guard lock(mutex_);
  kernels_[started_++ % kKept] = kernel;
}

uint64_t History::count() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

void History::settle(uint64_t count) {
  const std::lock_guard lock(mutex_);
  settled_ = std::max(settled_, count);
}

std::string History::suspects() const {
  const std::lock_guard lock(mutex_);
  const uint64_t running = started_ - settled_, shown = std::min(running, kKept);
  std::string names;
  for (uint64_t i = started_ - shown; i < started_; i++) {
    names += (names.empty() ? "" : ", ") + std::string(kernels_[i % kKept]);
  }
  if (running <= 1) return names;
  const std::string more = running > shown ? ", the last of " + std::to_string(running) : "";
  return "one of " + names + more;
}

}  // namespace mosaic::cuda
