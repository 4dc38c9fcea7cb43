#include "binding/addon.h"

namespace mosaic::nccl {

Told Addon::letter(Napi::Value number) const {
  return [mailbox = mailbox, id = number.As<Napi::Number>().DoubleValue()](const MosaicFailure* failure) {
    mailbox->post(id, failure);
  };
}

void Addon::abortAll() {
  for (const auto& engine : engines) engine->abort();
}

void Addon::end() {
  if (mailbox) mailbox->close();
  abortAll();
  engines.clear();
  hubs.clear();
}

std::shared_ptr<Engine> engineOf(const Napi::CallbackInfo& info) {
  if (auto engine = info[0].As<Handle>().Data()->lock()) return engine;
  throw Failure(MOSAIC_FAILURE_CLOSED, "this rank has left its group");
}

namespace {

// bind(deliver): whom to tell that letters came.
void bind(const Napi::CallbackInfo& info) {
  Addon& addon = addonOf(info);
  addon.mailbox = std::make_shared<Mailbox>(info.Env(), info[0]);
  // Added after the mailbox's function was made, so that it runs before that is torn down.
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
