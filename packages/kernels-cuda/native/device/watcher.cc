#include "device/watcher.h"

namespace mosaic::cuda {

Watcher::Watcher(std::shared_ptr<const Context> context)
    : context_(std::move(context)), thread_([this] { loop(); }) {}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void Watcher::after(CUstream stream, Then then) {
  std::unique_ptr<Event> event;
  CUresult recorded = CUDA_SUCCESS;
  try {
    event = takeEvent();
    recorded = driver().eventRecord(event->get(), stream);
  } catch (const CallError& error) {
    recorded = error.code();  // the context has failed: nobody may be forgotten for that
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(event), recorded, std::move(then)});
  }
  arrived_.notify_one();
}

std::unique_ptr<Event> Watcher::takeEvent() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      std::unique_ptr<Event> event = std::move(spare_.front());
      spare_.pop_front();
      return event;
    }
  }
  return std::make_unique<Event>(context_, EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC);
}

void Watcher::loop() {
  context_->enter();
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Awaited next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool isRecorded = next.recorded == CUDA_SUCCESS;
    next.then(isRecorded ? driver().eventSynchronize(next.event->get()) : next.recorded);
    next.then = nullptr;
    lock.lock();
    if (isRecorded) spare_.push_back(std::move(next.event));
  }
}

}  // namespace mosaic::cuda
