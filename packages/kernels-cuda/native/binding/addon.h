// What belongs to one JavaScript environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "mosaic/mailbox.h"

namespace mosaic::cuda {

/// Changes whenever the two sides would misunderstand each other; its counterpart is in src/addon.ts.
constexpr int32_t kProtocol = 1;

/// Arguments come through `scratch`, an array of doubles that JavaScript fills before it calls: nothing is parsed.
/// The first double is the device's address on the way in, and the result on the way out.
struct Addon {
  napi_env env = nullptr;
  double* scratch = nullptr;
  napi_ref scratchHolder = nullptr;
  std::shared_ptr<Mailbox> mailbox;
  std::unordered_map<double, std::shared_ptr<std::vector<TraceEntry>>> traces;

  static Addon& of(napi_env env);
  Device& device() const { return *reinterpret_cast<Device*>(static_cast<uintptr_t>(scratch[0])); }
};

/// Throws a JavaScript error whose `code` says what kind, as in `errorFromFailure`.
napi_value throwError(napi_env env, MosaicFailureCode code, const char* message);

/// Runs `body`; what it throws becomes a JavaScript error.
template <class Body>
napi_value guarded(napi_env env, Body body) {
  try {
    return body();
  } catch (const Failure& failure) {
    return throwError(env, failure.code(), failure.what());
  } catch (const std::exception& error) {
    return throwError(env, MOSAIC_FAILURE_DEVICE, error.what());
  }
}

/// What driver and GPUs there are; throws what is missing. For JavaScript: () → string[].
napi_value probe(napi_env env, napi_callback_info info);

void exportKernels(napi_env env, napi_value exports);
void exportDevice(napi_env env, napi_value exports);

}  // namespace mosaic::cuda
