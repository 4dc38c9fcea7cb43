// State of one JavaScript environment: the engines of its ranks, and the pending completions.
#pragma once

#include <napi.h>

#include <list>
#include <map>
#include <memory>

#include "collectives/engine.h"
#include "mosaic/completion_queue.h"
#include "mosaic/rethrow_as_js_error.h"

namespace mosaic {

/// Version of the interface to JavaScript. Its counterpart, `protocol` in src/collectives/addon.ts, must be equal.
constexpr int32_t kBindingVersion = 5;

struct Addon {
  std::shared_ptr<CompletionQueue> completions;
  /// Engines that have not closed. The list keeps operations in progress alive when their group is no longer
  /// referenced.
  std::list<std::shared_ptr<Engine>> engines;
  std::map<double, std::shared_ptr<std::vector<TraceRecord>>> traces;  // by completion

  /// Returns a callback that completes `number` once. `completions->expect()` must be called when it is certain to run.
  CompletionCallback completion(Napi::Value number) const;
  /// For use before the process exits: fails operations in progress, and waits up to 2 s for the communication threads.
  void abortAll();
  /// For use when the environment ends: no thread of the runtime outlives it.
  void shutDown();
};

inline Addon& getAddon(const Napi::CallbackInfo& info) { return *info.Env().GetInstanceData<Addon>(); }

using EngineHandle = Napi::External<std::weak_ptr<Engine>>;
inline std::shared_ptr<Engine> findEngine(const Napi::CallbackInfo& info) {
  return info[0].As<EngineHandle>().Data()->lock();
}
/// Throws Failure once the engine has closed.
std::shared_ptr<Engine> getEngine(const Napi::CallbackInfo& info);

/// Exports the functions that open and close ranks.
void exportRanks(Napi::Env env, Napi::Object exports);
/// Exports the operations of a rank.
void exportCalls(Napi::Env env, Napi::Object exports);

}  // namespace mosaic
