// The exports to JavaScript. They make a transport, which the engine of @mosaic/runtime drives.
#include <node_api.h>

#include "shared_memory/transport.h"

namespace {

/// Version of the interface to JavaScript. Its counterpart, `protocol` in src/local.ts, must be equal.
constexpr int32_t kBindingVersion = 2;

// open(): returns the address of a `MosaicTransport`.
napi_value open(napi_env env, napi_callback_info) {
  napi_value address;
  napi_create_double(env, static_cast<double>(reinterpret_cast<uintptr_t>(mosaic::openSharedMemory())), &address);
  return address;
}

}  // namespace

NAPI_MODULE_INIT() {
  napi_value protocol, function;
  napi_create_int32(env, kBindingVersion, &protocol);
  napi_set_named_property(env, exports, "protocol", protocol);
  napi_create_function(env, "open", NAPI_AUTO_LENGTH, open, nullptr, &function);
  napi_set_named_property(env, exports, "open", function);
  return exports;
}
