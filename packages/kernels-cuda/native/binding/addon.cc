// The addon's entry point: creates the environment's state and exports.
#include "binding/addon.h"

namespace mosaic::cuda {

namespace {

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
    return throwError(env, MOSAIC_FAILURE_DEVICE, "bind: expected a Float64Array, received a value of another type");
  }
  if (addon.argumentsReference) napi_delete_reference(env, addon.argumentsReference);
  napi_create_reference(env, arguments[0], 1, &addon.argumentsReference);
  addon.arguments = static_cast<double*>(data);
  if (addon.completions) return nullptr;
  addon.completions = std::make_shared<CompletionQueue>(env, arguments[1]);
  // Added after the ThreadSafeFunction is created, so that this hook runs before that is torn down.
  napi_add_env_cleanup_hook(
      env,
      [](void* data) {
        const Addon& addon = *static_cast<Addon*>(data);
        addon.completions->close();
        const std::lock_guard lock(addon.environment->mutex);
        addon.environment->isAlive = false;
      },
      &addon);
  return nullptr;
}

}  // namespace

Addon& Addon::of(napi_env env) {
  void* data = nullptr;
  napi_get_instance_data(env, &data);
  return *static_cast<Addon*>(data);
}

napi_value throwError(napi_env env, MosaicFailureCode code, const char* message) {
  napi_throw_error(env, std::to_string(code).c_str(), message);
  return nullptr;
}

}  // namespace mosaic::cuda

NAPI_MODULE_INIT() {
  using namespace mosaic::cuda;
  auto* addon = new Addon{};
  addon->env = env;
  napi_set_instance_data(env, addon, [](napi_env, void* data, void*) { delete static_cast<Addon*>(data); }, nullptr);
  napi_value function, protocol;
  napi_create_function(env, "bind", NAPI_AUTO_LENGTH, bind, nullptr, &function);
  napi_set_named_property(env, exports, "bind", function);
  napi_create_int32(env, kBindingVersion, &protocol);
  napi_set_named_property(env, exports, "protocol", protocol);
  exportDevice(env, exports);
  exportKernels(env, exports);
  exportStream(env, exports);
  exportTransfers(env, exports);
  return exports;
}
