#include "device/event_watcher.h"

#include "mosaic/thread.h"

namespace mosaic::cuda {

EventWatcher::EventWatcher(std::shared_ptr<const Context> context)
    : context_(std::move(context)), thread_(startThread("mosaic-events", [this] { loop(); })) {}

EventWatcher::~EventWatcher() {
  {
    const std::lock_guard lock(mutex_);
    isClosed_ = true;
  }
  eventsCondition_.notify_one();
  thread_.join();
}

void EventWatcher::onComplete(CUstream stream, Callback callback) {
  std::unique_ptr<Event> event;
  CUresult recordResult = CUDA_SUCCESS;
  try {
    event = acquireEvent();
    recordResult = driver().eventRecord(event->get(), stream);
  } catch (const CallError& error) {
    recordResult = error.code();  // the context has failed: every callback still runs
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(event), recordResult, std::move(callback)});
  }
  eventsCondition_.notify_one();
}

std::unique_ptr<Event> EventWatcher::acquireEvent() {
  {
    const std::lock_guard lock(mutex_);
    if (!freeEvents_.empty()) {
      std::unique_ptr<Event> event = std::move(freeEvents_.front());
      freeEvents_.pop_front();
      return event;
    }
  }
  return std::make_unique<Event>(context_, EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC);
}

void EventWatcher::loop() {
  context_->enter();
  std::unique_lock lock(mutex_);
  while (true) {
    eventsCondition_.wait(lock, [&] { return isClosed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    PendingEvent pendingEvent = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool isRecorded = pendingEvent.recordResult == CUDA_SUCCESS;
    pendingEvent.callback(isRecorded ? driver().eventSynchronize(pendingEvent.event->get())
                                     : pendingEvent.recordResult);
    pendingEvent.callback = nullptr;
    lock.lock();
    if (isRecorded) freeEvents_.push_back(std::move(pendingEvent.event));
  }
}

}  // namespace mosaic::cuda
