// The way back from streams to JavaScript: one ThreadSafeFunction for all devices of an environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mosaic/stream.h"

namespace mosaic {

/// Letters say that what has this id is done, or why it failed. The environment is kept alive while some are expected.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  /// `deliver(id, code, message)` is called for each letter, on the JavaScript thread.
  Mailbox(napi_env env, napi_value deliver);
  ~Mailbox();

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

}  // namespace mosaic
