// The smallest stream: a thread with a queue. It works like the stream of the CPU device, for tests without a device.
#pragma once

#include <mosaic/stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace mosaic::test {

class Stream : public MosaicStream {
 public:
  Stream() : MosaicStream{MOSAIC_STREAM_ABI, submitWork}, thread_([this] { loop(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Runs `task` in stream order, unless the stream has failed.
  void run(std::function<void()> task) {
    const MosaicWork work{"task",
                          [](void* arg, const MosaicFailure* upstream, MosaicFailure*) {
                            if (!upstream) (*static_cast<std::function<void()>*>(arg))();
                            return 0;
                          },
                          [](void* arg) { delete static_cast<std::function<void()>*>(arg); },
                          new std::function<void()>(std::move(task))};
    submit(this, &work);
  }
  void fail(const char* message) {
    const MosaicWork work{"fail",
                          [](void* arg, const MosaicFailure*, MosaicFailure* failure) {
                            failure->code = MOSAIC_FAILURE_DEVICE;
                            __builtin_strcpy(failure->message, static_cast<const char*>(arg));
                            return 1;
                          },
                          [](void*) {}, const_cast<char*>(message)};
    submit(this, &work);
  }
  /// Waits until all work is done. Returns the first failure, if any.
  std::optional<MosaicFailure> synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
    return failure_;
  }

 private:
  static void submitWork(MosaicStream* stream, const MosaicWork* work) {
    auto* self = static_cast<Stream*>(stream);
    {
      const std::lock_guard lock(self->mutex_);
      self->queue_.push_back(*work);
    }
    self->changed_.notify_all();
  }
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return over_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const MosaicWork work = queue_.front();
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      MosaicFailure failure{};
      const int rc = work.run(work.arg, failure_ ? &*failure_ : nullptr, &failure);
      work.drop(work.arg);
      lock.lock();
      if (rc != 0 && !failure_) failure_ = failure;
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MosaicWork> queue_;
  std::optional<MosaicFailure> failure_;
  bool busy_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace mosaic::test
