// Delivers completions of asynchronous native work to JavaScript, by one ThreadSafeFunction per environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mosaic/stream.h"

namespace mosaic {

/// A completion has the id of the completed work, and the failure if it failed. The environment stays alive while
/// completions are expected.
class CompletionQueue : public std::enable_shared_from_this<CompletionQueue> {
 public:
  /// `callback(id, code, message)` is called for each completion, on the JavaScript thread.
  CompletionQueue(napi_env env, napi_value callback);

  /// Announces one more completion. To be called on the JavaScript thread.
  void expect();
  /// May be called from any thread. Has no effect once the environment has ended.
  void complete(double id, const MosaicFailure* failure);
  /// To be called on the JavaScript thread when the environment ends.
  void close();

 private:
  struct Completion {
    double id;
    int32_t code;
    std::string message;
  };
  static void onSignal(napi_env env, napi_value, void* context, void*);
  void deliver();

  napi_env env_;
  napi_ref callback_ = nullptr;
  napi_threadsafe_function signal_ = nullptr;
  int pendingCount_ = 0;  // JavaScript thread only; above 0 the event loop stays alive
  std::mutex mutex_;
  std::vector<Completion> completions_;  // under mutex_
  bool isOpen_ = true;                   // under mutex_
};

inline CompletionQueue::CompletionQueue(napi_env env, napi_value callback) : env_(env) {
  napi_create_reference(env, callback, 1, &callback_);
  napi_value name;
  napi_create_string_utf8(env, "mosaic.device", NAPI_AUTO_LENGTH, &name);
  napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, onSignal, &signal_);
  napi_unref_threadsafe_function(env, signal_);
}

inline void CompletionQueue::expect() {
  if (pendingCount_++ == 0) napi_ref_threadsafe_function(env_, signal_);
}

inline void CompletionQueue::complete(double id, const MosaicFailure* failure) {
  const std::lock_guard lock(mutex_);
  if (!isOpen_) return;
  completions_.push_back({id, failure ? failure->code : 0, failure ? failure->message : ""});
  // One signal for all completions that are queued when it is handled.
  if (completions_.size() == 1) napi_call_threadsafe_function(signal_, nullptr, napi_tsfn_nonblocking);
}

inline void CompletionQueue::onSignal(napi_env env, napi_value, void* context, void*) {
  if (env) static_cast<CompletionQueue*>(context)->deliver();
}

inline void CompletionQueue::deliver() {
  std::vector<Completion> completions;
  {
    const std::lock_guard lock(mutex_);
    completions.swap(completions_);
  }
  napi_value callback, receiver;
  napi_get_reference_value(env_, callback_, &callback);
  napi_get_undefined(env_, &receiver);
  for (const Completion& completion : completions) {
    napi_value arguments[3];
    napi_create_double(env_, completion.id, &arguments[0]);
    napi_create_int32(env_, completion.code, &arguments[1]);
    napi_create_string_utf8(env_, completion.message.data(), completion.message.size(), &arguments[2]);
    napi_call_function(env_, receiver, callback, 3, arguments, nullptr);
    if (--pendingCount_ == 0) napi_unref_threadsafe_function(env_, signal_);
  }
}

inline void CompletionQueue::close() {
  const std::lock_guard lock(mutex_);
  isOpen_ = false;
  completions_.clear();
}

}  // namespace mosaic
