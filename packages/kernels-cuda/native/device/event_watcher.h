// Waits for events on a separate thread, so that JavaScript does not have to.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device/context.h"

namespace mosaic::cuda {

/// Calls back once the work before an event is done or has failed. The driver drops its own callbacks when a context
/// fails, but a thread that waits for an event still returns.
class EventWatcher {
 public:
  /// Receives the result of waiting for the event. Must not throw. May call the driver.
  using Callback = std::function<void(CUresult)>;

  explicit EventWatcher(std::shared_ptr<const Context> context);
  /// Callbacks registered before still run.
  ~EventWatcher();

  /// Calls back after all work enqueued to the stream so far. Callbacks run in the order of calls.
  void onComplete(CUstream stream, Callback callback);

 private:
  struct PendingEvent {
    std::unique_ptr<Event> event;
    CUresult recordResult;
    Callback callback;
  };
  void loop();
  std::unique_ptr<Event> acquireEvent();

  std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::condition_variable eventsCondition_;
  std::deque<PendingEvent> queue_;                 // under mutex_
  std::deque<std::unique_ptr<Event>> freeEvents_;  // under mutex_
  bool isClosed_ = false;                          // under mutex_
  std::thread thread_;
};

}  // namespace mosaic::cuda
