// State that belongs to one JavaScript environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "mosaic/completion_queue.h"

namespace mosaic::cuda {

/// Incremented whenever the interface between JavaScript and native code changes; its counterpart is in src/addon.ts.
constexpr int32_t kBindingVersion = 2;

/// Whether JavaScript's memory may still be written. Device threads may outlive an environment.
struct Environment {
  std::mutex mutex;
  bool isAlive = true;  // under mutex
};

/// Arguments are passed in `arguments`, an array of doubles that JavaScript fills before it calls, so nothing is
/// parsed. The first double is the device's address on input, and the result on output.
struct Addon {
  napi_env env = nullptr;
  double* arguments = nullptr;
  napi_ref argumentsReference = nullptr;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<Environment> environment = std::make_shared<Environment>();
  std::unordered_map<double, std::shared_ptr<std::vector<TraceEntry>>> traces;

  static Addon& of(napi_env env);
  /// Returns the device of a call, and makes its context current on this thread.
  Device& device() const {
    auto& device = *reinterpret_cast<Device*>(static_cast<uintptr_t>(arguments[0]));
    device.enter();
    return device;
  }
};

/// Throws a JavaScript error whose `code` is the kind of failure, as in `errorFromFailure`.
napi_value throwError(napi_env env, MosaicFailureCode code, const char* message);

/// Runs `body` and rethrows its exceptions as JavaScript errors. `device` adds the details of a failed driver call.
template <class Body>
napi_value rethrowAsJsError(napi_env env, Device* device, Body body) {
  try {
    return body();
  } catch (const Failure& failure) {
    return throwError(env, failure.code(), failure.what());
  } catch (const CallError& error) {
    const Failure failure = device ? device->describeFailure(error) : Failure(MOSAIC_FAILURE_DEVICE, error.what());
    return throwError(env, failure.code(), failure.what());
  } catch (const std::exception& error) {
    return throwError(env, MOSAIC_FAILURE_DEVICE, error.what());
  }
}

/// Returns the native object in the external that is the call's only argument.
template <class T>
T* externalIn(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value argument;
  void* data = nullptr;
  napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr);
  napi_get_value_external(env, argument, &data);
  return static_cast<T*>(data);
}

struct Export {
  const char* name;
  napi_callback function;
};

template <size_t N>
void exportAll(napi_env env, napi_value exports, const Export (&all)[N]) {
  for (const auto& [name, function] : all) {
    napi_value value;
    napi_create_function(env, name, NAPI_AUTO_LENGTH, function, nullptr, &value);
    napi_set_named_property(env, exports, name, value);
  }
}

/// Returns information about the driver and its GPUs; throws if something is missing. For JavaScript: () → string[].
napi_value probe(napi_env env, napi_callback_info info);

void exportDevice(napi_env env, napi_value exports);
void exportKernels(napi_env env, napi_value exports);
void exportStream(napi_env env, napi_value exports);
void exportTransfers(napi_env env, napi_value exports);

}  // namespace mosaic::cuda
