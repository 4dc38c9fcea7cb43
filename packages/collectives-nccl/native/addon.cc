// The exports to JavaScript. They find NCCL and make a transport, which the engine of @mosaic/runtime drives.
#include <napi.h>

#include "mosaic/rethrow_as_js_error.h"
#include "nccl/transport.h"

namespace mosaic::nccl {

namespace {

/// Version of the interface to JavaScript. Its counterpart, `protocol` in src/addon.ts, must be equal.
constexpr int32_t kBindingVersion = 3;

// load(candidates): loads NCCL and returns [version, path].
Napi::Value loadNccl(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto argument = info[0].As<Napi::Array>();
    std::vector<std::string> candidates;
    for (uint32_t i = 0; i < argument.Length(); i++) candidates.push_back(argument.Get(i).As<Napi::String>());
    const Library& loadedLibrary = load(candidates);
    const auto versionAndPath = Napi::Array::New(info.Env(), 2);
    versionAndPath.Set(uint32_t{0}, versionText(loadedLibrary.version));
    versionAndPath.Set(uint32_t{1}, loadedLibrary.path);
    return versionAndPath;
  });
}

// open({ minCtas, maxCtas, netName, warmUp }): returns the address of a `MosaicTransport`.
Napi::Value open(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto argument = info[0].As<Napi::Object>();
    const auto getNumber = [&](const char* name) { return argument.Get(name).As<Napi::Number>().Int32Value(); };
    const Settings settings{getNumber("minCtas"), getNumber("maxCtas"), argument.Get("netName").As<Napi::String>()};
    const auto address = reinterpret_cast<uintptr_t>(openTransport(settings, argument.Get("warmUp").ToBoolean()));
    return Napi::Number::New(info.Env(), static_cast<double>(address));
  });
}

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  exports.Set("protocol", kBindingVersion);
  exports.Set("load", Napi::Function::New(env, loadNccl));
  exports.Set("open", Napi::Function::New(env, open));
  return exports;
}

}  // namespace

}  // namespace mosaic::nccl

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) {
  return mosaic::nccl::initialize(env, exports);
}
NODE_API_MODULE(mosaic_collectives_nccl, initializeModule)
