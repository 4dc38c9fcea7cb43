// Native failures as JavaScript errors.
#pragma once

#include <napi.h>

#include <string>

#include "mosaic/failure.h"

namespace mosaic {

/// Runs `body`. Converts native failures to JavaScript errors whose `code` is a MosaicFailureCode, for
/// `translateErrors`.
template <typename Body>
auto rethrowAsJsError(Napi::Env env, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const Failure& failure) {
    Napi::Error error = Napi::Error::New(env, failure.what());
    error.Set("code", std::to_string(failure.code()));
    throw error;
  } catch (const Napi::Error&) {
    throw;
  } catch (const std::exception& exception) {
    throw Napi::Error::New(env, exception.what());
  }
}

}  // namespace mosaic
