#include "binding/addon.h"

namespace mosaic {

CompletionCallback Addon::completion(Napi::Value number) const {
  return [completions = completions, id = number.As<Napi::Number>().DoubleValue()](const MosaicFailure* failure) {
    completions->complete(id, failure);
  };
}

void Addon::abortAll() {
  for (const auto& engine : engines) engine->abort();
  // If a process exits because of an error, libraries such as UCX destroy their state while these threads still use it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (const auto& engine : engines) engine->join(deadline);
}

void Addon::shutDown() {
  if (completions) completions->close();
  abortAll();
  engines.clear();
}

std::shared_ptr<Engine> getEngine(const Napi::CallbackInfo& info) {
  if (auto engine = findEngine(info)) return engine;
  throw Failure(MOSAIC_FAILURE_CLOSED, "expected open groups, received closed groups");
}

namespace {

// bind(callback): `callback(completion, code, message)` settles promises.
void bind(const Napi::CallbackInfo& info) {
  Addon& addon = getAddon(info);
  addon.completions = std::make_shared<CompletionQueue>(info.Env(), info[0]);
  // Added after the queue's ThreadSafeFunction was created, so that it runs before that function is destroyed.
  info.Env().AddCleanupHook([&addon] { addon.shutDown(); });
}

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Addon);
  exports.Set("protocol", kBindingVersion);
  exports.Set("bind", Napi::Function::New(env, bind));
  exportRanks(env, exports);
  exportCalls(env, exports);
  return exports;
}

}  // namespace

}  // namespace mosaic

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) { return mosaic::initialize(env, exports); }
NODE_API_MODULE(mosaic_runtime, initializeModule)
