#include "binding/addon.h"

namespace mosaic::nccl {

Told Addon::completion(Napi::Value number) const {
  return [completions = completions, id = number.As<Napi::Number>().DoubleValue()](const MosaicFailure* failure) {
    completions->complete(id, failure);
  };
}

void Addon::abortAll() {
  for (const auto& engine : engines) engine->abort();
}

void Addon::end() {
  if (completions) completions->close();
  abortAll();
  engines.clear();
  hubs.clear();
}

std::shared_ptr<Engine> engineOf(const Napi::CallbackInfo& info) {
  if (auto engine = info[0].As<Handle>().Data()->lock()) return engine;
  throw Failure(MOSAIC_FAILURE_CLOSED, "this rank has left its group");
}

namespace {

// bind(callback): the callback for completions.
void bind(const Napi::CallbackInfo& info) {
  Addon& addon = addonOf(info);
  addon.completions = std::make_shared<CompletionQueue>(info.Env(), info[0]);
  // Added after the completion queue's function was made, so that it runs before that is torn down.
  info.Env().AddCleanupHook([&addon] { addon.end(); });
}

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Addon);
  exports.Set("protocol", kProtocol);
  exports.Set("bind", Napi::Function::New(env, bind));
  exportJoining(env, exports);
  exportCalls(env, exports);
  return exports;
}

}  // namespace

}  // namespace mosaic::nccl

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) {
  return mosaic::nccl::initialize(env, exports);
}
NODE_API_MODULE(mosaic_collectives_nccl, initializeModule)
