// State that belongs to one JavaScript environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "mosaic/completion_queue.h"
#include "device/device.h"

namespace mosaic {

/// Incremented whenever the interface between JavaScript and native code changes; its counterpart is in src/addon.ts.
constexpr int32_t kBindingVersion = 4;

/// Arguments are passed in `arguments`, an array of doubles that JavaScript fills before it calls, so nothing is
/// parsed. The first double is the device's address on input, and the result on output.
struct Addon {
  napi_env env = nullptr;
  double* arguments = nullptr;
  napi_ref argumentsReference = nullptr;
  std::shared_ptr<CompletionQueue> completions;
  std::vector<std::weak_ptr<Device>> devices;
  /// Recorded traces, by the completion that announces them.
  std::unordered_map<double, std::shared_ptr<std::vector<TraceEntry>>> traces;

  static Addon& of(napi_env env);
  Device& device() const { return *reinterpret_cast<Device*>(static_cast<uintptr_t>(arguments[0])); }
};

napi_value throwError(napi_env env, const char* message);
/// Throws the exception in flight as a JavaScript error, with the code of its error class. Must be called from a catch
/// block.
napi_value throwCurrentException(napi_env env);

/// Wraps an exported function, so that its exceptions become JavaScript errors. Exceptions must not propagate through
/// Node's stack frames.
template <napi_callback call>
napi_value guarded(napi_env env, napi_callback_info info) {
  try {
    return call(env, info);
  } catch (...) {
    return throwCurrentException(env);
  }
}

/// Adds one function per kernel to `exports`.
void exportKernels(napi_env env, napi_value exports);
/// Adds opening, closing, memory, reading, writing, fences and tracing to `exports`.
void exportDevice(napi_env env, napi_value exports);

}  // namespace mosaic
