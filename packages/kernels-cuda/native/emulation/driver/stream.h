// A stream of the emulated driver: a thread that runs enqueued work in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "driver/api.h"

namespace emulated {

/// The first error, if any. As on a GPU it is sticky: the context executes nothing after it.
class ContextStatus {
 public:
  CUresult get() const;
  void fail(CUresult code);

 private:
  mutable std::mutex mutex_;
  CUresult code_ = 0;
};

ContextStatus& contextStatus();

/// Whether the calling thread is in a callback of cuLaunchHostFunc, which must not call the driver.
bool& isInCallback();

/// One recording of an event, completed when its stream reaches it.
class EventRecord {
 public:
  void complete();
  /// Blocks until it is completed.
  void waitUntilComplete();
  bool isComplete();
  /// Returns the time of completion.
  int64_t timeNs();

 private:
  std::mutex mutex_;
  std::condition_variable completedCondition_;
  bool isComplete_ = false;
  int64_t timeNs_ = 0;
};

/// An event refers to its latest record. An earlier record may still be pending on another stream and complete later.
/// As on a GPU, a wait ends with the record that was the latest when the wait was enqueued.
class Event {
 public:
  /// Never recorded: waits return at once.
  Event();
  std::shared_ptr<EventRecord> record();
  std::shared_ptr<EventRecord> latestRecord();

 private:
  std::mutex mutex_;
  std::shared_ptr<EventRecord> latestRecord_ = std::make_shared<EventRecord>();
};

class Stream {
 public:
  Stream();
  /// Enqueued work still runs.
  ~Stream();

  /// `work` is skipped once the context has failed, unless `runsAfterFailure`.
  void enqueue(std::function<void()> work, bool runsAfterFailure = false);
  bool isIdle();
  void synchronize();

 private:
  struct Work {
    std::function<void()> run;
    bool runsAfterFailure;
  };
  void loop();

  std::mutex mutex_;
  std::condition_variable workCondition_, drainedCondition_;
  std::deque<Work> queue_;
  bool isBusy_ = false, isClosed_ = false;
  std::thread thread_;
};

/// Returns a stream; null is the default stream.
Stream& streamOf(CUstream handle);

}  // namespace emulated
