#include "binding/addon.h"

#include "nccl/library.h"

namespace mosaic::nccl {

namespace {

// load(candidates): [version, path] of NCCL.
Napi::Value loadNccl(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const auto given = info[0].As<Napi::Array>();
    std::vector<std::string> candidates;
    for (uint32_t i = 0; i < given.Length(); i++) candidates.push_back(given.Get(i).As<Napi::String>());
    const Library& found = load(candidates);
    const auto pair = Napi::Array::New(info.Env(), 2);
    pair.Set(uint32_t{0}, versionText(found.version));
    pair.Set(uint32_t{1}, found.path);
    return pair;
  });
}

}  // namespace

static Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  exports.Set("protocol", kProtocol);
  exports.Set("load", Napi::Function::New(env, loadNccl));
  return exports;
}

}  // namespace mosaic::nccl

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) {
  return mosaic::nccl::initialize(env, exports);
}
NODE_API_MODULE(mosaic_collectives_nccl, initializeModule)
