// What belongs to one JavaScript environment.
#pragma once

#include <node_api.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "mosaic/completion_queue.h"
#include "device/device.h"

namespace mosaic {

/// Changes whenever the two sides would misunderstand each other; its counterpart is in src/addon.ts.
constexpr int32_t kBindingVersion = 4;

/// Arguments come through `arguments`, an array of doubles that JavaScript fills before it calls: nothing is parsed.
/// The first double is the device's address on the way in, and the result on the way out.
struct Addon {
  napi_env env = nullptr;
  double* arguments = nullptr;
  napi_ref argumentsReference = nullptr;
  std::shared_ptr<CompletionQueue> completions;
  std::vector<std::weak_ptr<Device>> devices;
  /// What streams recorded, by the completion that announces them.
  std::unordered_map<double, std::shared_ptr<std::vector<TraceEntry>>> traces;

  static Addon& of(napi_env env);
  Device& device() const { return *reinterpret_cast<Device*>(static_cast<uintptr_t>(arguments[0])); }
};

napi_value throwError(napi_env env, const char* message);
/// Throws what the exception in flight reports, under the code of its error class; call from a catch block.
napi_value throwCurrentException(napi_env env);

/// An export: what it throws becomes a JavaScript error. No exception may pass through Node's frames.
template <napi_callback call>
napi_value guarded(napi_env env, napi_callback_info info) {
  try {
    return call(env, info);
  } catch (...) {
    return throwCurrentException(env);
  }
}

/// `exports` gets one function per kernel.
void exportKernels(napi_env env, napi_value exports);
/// Opening, closing, memory, reading, writing, fences, tracing.
void exportDevice(napi_env env, napi_value exports);

}  // namespace mosaic
