#include "device/event_watcher.h"

namespace mosaic::cuda {

EventWatcher::EventWatcher(std::shared_ptr<const Context> context)
    : context_(std::move(context)), thread_([this] { loop(); }) {}

EventWatcher::~EventWatcher() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  available_.notify_one();
  thread_.join();
}

void EventWatcher::onComplete(CUstream stream, Callback callback) {
  std::unique_ptr<Event> event;
  CUresult recorded = CUDA_SUCCESS;
  try {
    event = acquireEvent();
    recorded = driver().eventRecord(event->get(), stream);
  } catch (const CallError& error) {
    recorded = error.code();  // the context has failed: every callback still runs
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(event), recorded, std::move(callback)});
  }
  available_.notify_one();
}

std::unique_ptr<Event> EventWatcher::acquireEvent() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Event> event = std::move(free_.front());
      free_.pop_front();
      return event;
    }
  }
  return std::make_unique<Event>(context_, EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC);
}

void EventWatcher::loop() {
  context_->enter();
  std::unique_lock lock(mutex_);
  while (true) {
    available_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    PendingEvent next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool isRecorded = next.recorded == CUDA_SUCCESS;
    next.callback(isRecorded ? driver().eventSynchronize(next.event->get()) : next.recorded);
    next.callback = nullptr;
    lock.lock();
    if (isRecorded) free_.push_back(std::move(next.event));
  }
}

}  // namespace mosaic::cuda
