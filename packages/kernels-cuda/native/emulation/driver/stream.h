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
class Health {
 public:
  CUresult get() const;
  void fail(CUresult code);

 private:
  mutable std::mutex mutex_;
  CUresult code_ = 0;
};

Health& health();

/// Whether the calling thread is within a callback of cuLaunchHostFunc, which must not call the driver.
bool& inCallback();

/// Counts how often an event was recorded and how often that was reached.
struct Event {
  std::mutex mutex;
  std::condition_variable reached;
  uint64_t recorded = 0, done = 0;
  int64_t nanoseconds = 0;

  /// Blocks until the `wanted`th record is reached.
  void await(uint64_t wanted);
  void reach(uint64_t number);
};

class Stream {
 public:
  Stream();
  /// What is enqueued still runs.
  ~Stream();

  /// `work` is skipped once the context has failed, unless `always`.
  void enqueue(std::function<void()> work, bool always = false);
  bool idle();
  void synchronize();

 private:
  struct Work {
    std::function<void()> run;
    bool always;
  };
  void loop();

  std::mutex mutex_;
  std::condition_variable arrived_, drained_;
  std::deque<Work> queue_;
  bool busy_ = false, closed_ = false;
  std::thread thread_;
};

/// Null: the standard stream.
Stream& streamOf(CUstream handle);

}  // namespace emulated
