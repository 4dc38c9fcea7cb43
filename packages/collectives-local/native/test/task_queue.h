// Runs tasks on the JavaScript thread, from any thread. Keeps the event loop alive exactly while one is expected.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace mosaic {

class TaskQueue {
 public:
  using Task = std::function<void(Napi::Env)>;

  explicit TaskQueue(Napi::Env env)
      : env_(env), function_(Napi::ThreadSafeFunction::New(env, Napi::Function(), "mosaic.test", 0, 1)) {
    function_.Unref(env);
  }

  /// JavaScript thread: exactly one `deliver` will follow.
  void expect() {
    if (expected_++ == 0) function_.Ref(env_);
  }

  /// Any thread: runs `task` on the JavaScript thread; after `close`, nowhere.
  void deliver(Task task) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    auto* held = new Task(std::move(task));
    const auto status = function_.NonBlockingCall(held, [this](Napi::Env env, Napi::Function, Task* run) {
      const std::unique_ptr<Task> owned(run);
      if (!env) return;  // it is being torn down
      if (--expected_ == 0) function_.Unref(env);
      (*run)(env);
    });
    if (status != napi_ok) delete held;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(closed_, true)) function_.Release();
  }

 private:
  Napi::Env env_;
  Napi::ThreadSafeFunction function_;
  std::mutex mutex_;
  bool closed_ = false;
  int expected_ = 0;  // JavaScript thread only
};

}  // namespace mosaic
