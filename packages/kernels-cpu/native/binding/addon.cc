// The addon's entry point: creates the environment's state and exports, and shuts down the streams on environment exit.
#include "binding/addon.h"

#include <chrono>
#include <string>

namespace mosaic {

namespace {

// A kernel may be running when the environment exits. It is awaited for at most this long and then left running; it
// keeps its device and memory alive.
constexpr auto kExitTimeout = std::chrono::milliseconds(300);

void onEnvironmentEnd(void* data) {
  auto& addon = *static_cast<Addon*>(data);
  if (addon.completions) addon.completions->close();
  for (const auto& weakDevice : addon.devices) {
    if (auto device = weakDevice.lock()) device->stream.closeAndFailPending();
  }
  const auto deadline = std::chrono::steady_clock::now() + kExitTimeout;
  for (const auto& weakDevice : addon.devices) {
    if (auto device = weakDevice.lock()) device->waitForExit(deadline);
  }
}

// bind(arguments, deliver): called on load, and again (without deliver) when the array must grow.
napi_value bind(napi_env env, napi_callback_info info) {
  Addon& addon = Addon::of(env);
  size_t count = 2;
  napi_value arguments[2];
  napi_get_cb_info(env, info, &count, arguments, nullptr, nullptr);
  napi_typedarray_type type;
  void* data;
  if (napi_get_typedarray_info(env, arguments[0], &type, nullptr, &data, nullptr, nullptr) != napi_ok ||
      type != napi_float64_array) {
    return throwError(env, "bind: expected a Float64Array, received a value of another type");
  }
  if (addon.argumentsReference) napi_delete_reference(env, addon.argumentsReference);
  napi_create_reference(env, arguments[0], 1, &addon.argumentsReference);
  addon.arguments = static_cast<double*>(data);
  if (!addon.completions) {
    addon.completions = std::make_shared<CompletionQueue>(env, arguments[1]);
    // Added after the ThreadSafeFunction is created, so that this hook runs before that is torn down.
    napi_add_env_cleanup_hook(env, onEnvironmentEnd, &addon);
  }
  return nullptr;
}

}  // namespace

Addon& Addon::of(napi_env env) {
  void* data = nullptr;
  napi_get_instance_data(env, &data);
  return *static_cast<Addon*>(data);
}

napi_value throwError(napi_env env, const char* message) {
  napi_throw_error(env, nullptr, message);
  return nullptr;
}

napi_value throwCurrentException(napi_env env) {
  MosaicFailure failure{};
  fillFailureFromException(failure);
  napi_throw_error(env, std::to_string(failure.code).c_str(), failure.message);
  return nullptr;
}

}  // namespace mosaic

NAPI_MODULE_INIT() {
  using namespace mosaic;
  auto* addon = new Addon{};
  addon->env = env;
  napi_set_instance_data(env, addon, [](napi_env, void* data, void*) { delete static_cast<Addon*>(data); }, nullptr);
  napi_value function;
  napi_create_function(env, "bind", NAPI_AUTO_LENGTH, guarded<bind>, nullptr, &function);
  napi_set_named_property(env, exports, "bind", function);
  napi_value protocol;
  napi_create_int32(env, kBindingVersion, &protocol);
  napi_set_named_property(env, exports, "protocol", protocol);
  exportDevice(env, exports);
  exportKernels(env, exports);
  return exports;
}
