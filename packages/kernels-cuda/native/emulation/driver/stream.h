// A stream of the stand-in driver: a thread that runs what is enqueued, in order.
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

/// What went wrong first, if anything did. As on a GPU it sticks to the context: nothing else is carried out after it.
class ContextStatus {
 public:
  CUresult get() const;
  void fail(CUresult code);

 private:
  mutable std::mutex mutex_;
  CUresult code_ = 0;
};

ContextStatus& contextStatus();

/// Whether the calling thread is within a callback of cuLaunchHostFunc, which must not call the driver.
bool& isInCallback();

/// One record of an event: reached once, when its stream comes to it.
class EventRecord {
 public:
  void complete();
  /// Blocks until it is reached.
  void waitUntilComplete();
  bool isComplete();
  /// When it was reached.
  int64_t timeNs();

 private:
  std::mutex mutex_;
  std::condition_variable completedCondition_;
  bool isComplete_ = false;
  int64_t timeNs_ = 0;
};

/// An event refers to its latest record. An earlier one may still be pending on another stream, and be reached after
/// it: as on a GPU, a wait ends with the record that was the latest when it was enqueued, and no other.
class Event {
 public:
  /// Never recorded: nothing is waited for.
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
  /// What is enqueued still runs.
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

/// Null: the standard stream.
Stream& streamOf(CUstream handle);

}  // namespace emulated
