// What belongs to one JavaScript environment.
#pragma once

#include <napi.h>

#include "failure.h"

namespace mosaic::nccl {

/// Changes whenever the two sides would misunderstand each other; its counterpart is in src/addon.ts.
constexpr int32_t kProtocol = 1;

/// Runs `body`; native failures become JavaScript errors whose `code` says what kind, as in `errorFromFailure`.
template <typename Body>
auto guarded(Napi::Env env, Body body) -> decltype(body()) {
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

}  // namespace mosaic::nccl
