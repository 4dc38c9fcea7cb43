// The way back from streams to JavaScript: one ThreadSafeFunction for all devices of an environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mosaic/stream.h"

namespace mosaic {

/// Letters say that what has this id is done, or why it failed. The environment is kept alive while some are expected.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  /// `deliver(id, code, message)` is called for each letter, on the JavaScript thread.
  Mailbox(napi_env env, napi_value deliver);

  /// On the JavaScript thread: one more letter will come.
  void expect();
  /// From any thread. Dropped once the environment is gone.
  void post(double id, const MosaicFailure* failure);
  /// On the JavaScript thread, when the environment goes.
  void close();

 private:
  struct Letter {
    double id;
    int32_t code;
    std::string message;
  };
  static void onSignal(napi_env env, napi_value, void* context, void*);
  void deliverAll();

  napi_env env_;
  napi_ref deliver_ = nullptr;
  napi_threadsafe_function signal_ = nullptr;
  int expected_ = 0;  // of the JavaScript thread
  std::mutex mutex_;
  std::vector<Letter> letters_;  // under mutex_
  bool open_ = true;             // under mutex_
};

inline Mailbox::Mailbox(napi_env env, napi_value deliver) : env_(env) {
  napi_create_reference(env, deliver, 1, &deliver_);
  napi_value name;
  napi_create_string_utf8(env, "mosaic.device", NAPI_AUTO_LENGTH, &name);
  napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, onSignal, &signal_);
  napi_unref_threadsafe_function(env, signal_);
}

inline void Mailbox::expect() {
  if (expected_++ == 0) napi_ref_threadsafe_function(env_, signal_);
}

inline void Mailbox::post(double id, const MosaicFailure* failure) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  letters_.push_back({id, failure ? failure->code : 0, failure ? failure->message : ""});
  // One signal for all letters that lie there when it is served.
  if (letters_.size() == 1) napi_call_threadsafe_function(signal_, nullptr, napi_tsfn_nonblocking);
}

inline void Mailbox::onSignal(napi_env env, napi_value, void* context, void*) {
  if (env) static_cast<Mailbox*>(context)->deliverAll();
}

inline void Mailbox::deliverAll() {
  std::vector<Letter> letters;
  {
    const std::lock_guard lock(mutex_);
    letters.swap(letters_);
  }
  napi_value deliver, receiver;
  napi_get_reference_value(env_, deliver_, &deliver);
  napi_get_undefined(env_, &receiver);
  for (const Letter& letter : letters) {
    napi_value arguments[3];
    napi_create_double(env_, letter.id, &arguments[0]);
    napi_create_int32(env_, letter.code, &arguments[1]);
    napi_create_string_utf8(env_, letter.message.data(), letter.message.size(), &arguments[2]);
    napi_call_function(env_, receiver, deliver, 3, arguments, nullptr);
    if (--expected_ == 0) napi_unref_threadsafe_function(env_, signal_);
  }
}

inline void Mailbox::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  letters_.clear();
}

}  // namespace mosaic
