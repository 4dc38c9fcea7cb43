// Waits for events on a thread of its own, so that JavaScript never does.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device/context.h"

namespace mosaic::cuda {

/// Calls back once the work before an event is done, or has failed. A driver drops callbacks of its own when a context
/// fails; a thread that waits for the event is notified.
class EventWatcher {
 public:
  /// Gets what waiting for the event returned. Must not throw. It may call the driver.
  using Callback = std::function<void(CUresult)>;

  explicit EventWatcher(std::shared_ptr<const Context> context);
  /// What was registered before still runs.
  ~EventWatcher();

  /// After all work in the stream so far. In the order of calls.
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
