// Marks in streams, used again and again.
#pragma once

#include <mutex>
#include <vector>

#include "cuda/driver.h"

namespace mosaic::nccl {

class Events {
 public:
  explicit Events(unsigned flags) : flags_(flags) {}
  Events(const Events&) = delete;

  CUevent take() {
    const std::lock_guard lock(mutex_);
    CUevent event = nullptr;
    if (spare_.empty()) {
      check(driver().eventCreate(&event, flags_), "making an event");
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    return event;
  }
  void give(CUevent event) {
    const std::lock_guard lock(mutex_);
    if (event) spare_.push_back(event);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (const CUevent event : spare_) driver().eventDestroy(event);
    spare_.clear();
  }

 private:
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<CUevent> spare_;
};

}  // namespace mosaic::nccl
