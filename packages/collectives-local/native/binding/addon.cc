#include "addon.h"

namespace mosaic {

void Addon::sweep() {
  members.remove_if([](const auto& member) { return member->engine == nullptr; });
  connecting.remove_if([](Connecting& each) {
    if (!each.over) return false;
    each.thread.join();
    return true;
  });
}

void Addon::abortAll() {
  for (const auto& member : members) {
    if (member->engine) member->engine->abort();
  }
}

void Addon::end() {
  ending = true;
  mailbox->close();
  abortAll();
  for (const auto& member : members) member->engine.reset();
  members.clear();
  for (Connecting& each : connecting) each.thread.join();
  connecting.clear();
}

static Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  auto* addon = new Addon;
  addon->mailbox = std::make_shared<Mailbox>(env);
  env.SetInstanceData(addon);
  // Added after the mailbox's function was made, so that it runs before that is torn down.
  env.AddCleanupHook([addon] { addon->end(); });
  exportMembers(env, exports);
  exportCalls(env, exports);
  return exports;
}

}  // namespace mosaic

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) { return mosaic::initialize(env, exports); }
NODE_API_MODULE(mosaic_collectives_local, initializeModule)
