// The smallest device with a port (mosaic/device_port.h): its memory is host memory, and its stream is a thread with a
// queue. For tests of the engine over the emulated NCCL without Node, and under ThreadSanitizer.
#pragma once

#include <mosaic/clock.h>
#include <mosaic/device_port.h>
#include <mosaic/failure.h>
#include <mosaic/reduction.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace mosaic::test {

class Stream {
 public:
  Stream() : thread_([this] { loop(); }) {}
  /// Runs all submitted work first.
  ~Stream() {
    submit(nullptr);
    thread_.join();
  }
  void submit(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    arrived_.notify_one();
  }

 private:
  void loop() {
    for (std::function<void()> work = next(); work; work = next()) work();
  }
  std::function<void()> next() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !queue_.empty(); });
    auto work = std::move(queue_.front());
    queue_.pop_front();
    return work;
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

struct Event {
  std::mutex mutex;
  std::condition_variable reached;
  bool isDone = false;
  int64_t at = 0;

  void reach() {
    const std::lock_guard lock(mutex);
    isDone = true;
    at = monotonicNs();
    reached.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex);
    reached.wait(lock, [this] { return isDone; });
  }
};

class Device : public MosaicDevicePort {
 public:
  Device();
  Stream stream;  // the compute stream

  std::optional<MosaicFailure> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void fail(const MosaicFailure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
  }
  /// Waits until compute is done. Returns the first failure, if any.
  std::optional<MosaicFailure> synchronize() {
    Event passed;
    stream.submit([&] { passed.reach(); });
    passed.await();
    return failure();
  }

 private:
  std::mutex mutex_;
  std::optional<MosaicFailure> failure_;
};

}  // namespace mosaic::test
