// The exports to JavaScript. They find UCX and make a transport, which the engine of @mosaic/runtime drives.
#include <napi.h>

#include "mosaic/rethrow_as_js_error.h"
#include "ucx/transport.h"

namespace mosaic::ucx {

namespace {

/// Version of the interface to JavaScript. Its counterpart, `protocol` in src/addon.ts, must be equal.
constexpr int32_t kBindingVersion = 1;

// load(candidates): loads UCX and returns [version, path].
Napi::Value loadUcx(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto argument = info[0].As<Napi::Array>();
    std::vector<std::string> candidates;
    for (uint32_t i = 0; i < argument.Length(); i++) candidates.push_back(argument.Get(i).As<Napi::String>());
    const Library& loadedLibrary = load(candidates);
    const auto versionAndPath = Napi::Array::New(info.Env(), 2);
    versionAndPath.Set(uint32_t{0}, loadedLibrary.version());
    versionAndPath.Set(uint32_t{1}, loadedLibrary.path);
    return versionAndPath;
  });
}

// open(network, ports): returns the address of a `MosaicTransport`.
Napi::Value open(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const Settings settings{info[0].As<Napi::String>(), info[1].As<Napi::String>()};
    return Napi::Number::New(info.Env(), static_cast<double>(reinterpret_cast<uintptr_t>(openTransport(settings))));
  });
}

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  exports.Set("protocol", kBindingVersion);
  exports.Set("load", Napi::Function::New(env, loadUcx));
  exports.Set("open", Napi::Function::New(env, open));
  return exports;
}

}  // namespace

}  // namespace mosaic::ucx

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) {
  return mosaic::ucx::initialize(env, exports);
}
NODE_API_MODULE(mosaic_collectives_ucx, initializeModule)
