#include "device/watcher.h"

#include "driver/driver.h"

namespace mosaic::cuda {

Watcher::Watcher(CUcontext context) : context_(context), thread_([this] { loop(); }) {}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_one();
  thread_.join();
  for (const CUevent event : spare_) driver().eventDestroy(event);
}

void Watcher::after(CUstream stream, Then then) {
  const CUevent event = takeEvent();
  // If the context has failed, so does waiting: nobody is forgotten.
  driver().eventRecord(event, stream);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({event, std::move(then)});
  }
  arrived_.notify_one();
}

CUevent Watcher::takeEvent() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      const CUevent event = spare_.front();
      spare_.pop_front();
      return event;
    }
  }
  CUevent event = nullptr;
  driver().eventCreate(&event, EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC);
  return event;
}

void Watcher::loop() {
  driver().ctxSetCurrent(context_);
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Awaited next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const CUresult code = next.event ? driver().eventSynchronize(next.event) : CUDA_ERROR_LAUNCH_FAILED;
    next.then(code);
    next.then = nullptr;
    lock.lock();
    if (next.event) spare_.push_back(next.event);
  }
}

}  // namespace mosaic::cuda
