#include "binding/mailbox.h"

#include <utility>

namespace mosaic {

Mailbox::Mailbox(napi_env env, napi_value deliver) : env_(env) {
  napi_create_reference(env, deliver, 1, &deliver_);
  napi_value name;
  napi_create_string_utf8(env, "mosaic.kernels-cpu", NAPI_AUTO_LENGTH, &name);
  napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, onSignal, &signal_);
  napi_unref_threadsafe_function(env, signal_);
}

Mailbox::~Mailbox() = default;

void Mailbox::expect() {
  if (expected_++ == 0) napi_ref_threadsafe_function(env_, signal_);
}

void Mailbox::post(double id, const MosaicFailure* failure) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  letters_.push_back({id, failure ? failure->code : 0, failure ? failure->message : ""});
  // One signal for all letters that lie there when it is served.
  if (letters_.size() == 1) napi_call_threadsafe_function(signal_, nullptr, napi_tsfn_nonblocking);
}

void Mailbox::onSignal(napi_env env, napi_value, void* context, void*) {
  if (env) static_cast<Mailbox*>(context)->deliverAll();
}

void Mailbox::deliverAll() {
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

void Mailbox::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  letters_.clear();
}

}  // namespace mosaic
